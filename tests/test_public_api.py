"""The exported names, sorted, nothing more; and what starting up may load."""

import subprocess
import sys

import pytest

import privet
import privet.accounting
import privet.planning

NAMES = [
    "Budget",
    "Guarantee",
    "Ledger",
    "Plan",
    "Recipe",
    "Report",
    "Run",
    "Step",
    "Training",
    "attack",
    "audit",
    "epsilon_curve",
    "errors",
    "plan",
    "report",
    "schedule",
    "spent",
    "train",
]


def test_the_names_are_these() -> None:
    assert privet.__all__ == NAMES


@pytest.mark.parametrize("module", [privet, privet.accounting, privet.planning])
def test_the_names_are_sorted_and_there(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(module, name) is not None


def test_the_names_can_be_listed() -> None:
    assert set(NAMES) <= set(dir(privet))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'spend'"):
        privet.spend  # noqa: B018


def test_the_version_is_known() -> None:
    assert privet.__version__[0].isdigit()


def test_the_example_of_the_readme() -> None:
    from privet import Ledger, Step, spent

    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    guarantee = spent(ledger, delta=1e-5)
    assert guarantee.epsilon_lower is not None
    assert guarantee.epsilon_lower <= guarantee.epsilon
    assert (guarantee.delta, guarantee.label, guarantee.method) == (1e-5, "certified", "pld")
    assert spent(ledger, delta=1e-5, accountant="gdp").label == "approximate"


def loaded_after(code: str) -> set[str]:
    """The top-level modules in memory after running `code` in a fresh interpreter."""
    tail = "\nimport sys\nprint('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


def command(*words: str) -> str:
    return f"from privet.cli import main\nmain({list(words)!r}, standalone_mode=False)"


@pytest.mark.parametrize(
    "code",
    [
        "import privet",
        "import privet.cli",
        command("--help"),
        *(command(name, "--help") for name in ("epsilon", "plan", "train")),
    ],
)
def test_starting_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & {"torch", "matplotlib", "scipy", "numpy", "rich"}


def test_asking_for_epsilon_loads_no_torch_and_no_plots() -> None:
    words = [
        "epsilon",
        "--rate",
        "256/60000",
        "--noise",
        "1.1",
        "--steps",
        "100",
        "--delta",
        "1e-5",
        "--accountant",
        "all",
    ]
    assert not loaded_after(command(*words)) & {"torch", "matplotlib", "dp_accounting", "opacus"}


def test_planning_loads_no_torch_and_no_plots() -> None:
    words = "plan --size 60000 --batch 256 --steps 100 --epsilon 2 --method dynamic --rho-noise 3 --rho-clip 2 --json"
    heavy = {"torch", "matplotlib", "dp_accounting", "opacus", "jinja2", "markdown_it", "msgspec"}
    assert not loaded_after(command(*words.split())) & heavy


def test_the_plan_of_the_design() -> None:
    from privet import Budget, Recipe, plan

    p = plan(
        Recipe(
            budget=Budget(epsilon=1.2, delta=1e-5), dataset_size=60000, batch_size=256, epochs=60,
            method="dynamic", rho_noise=3.3, rho_clip=3.3, clipping_norm=1.0,
        )
    )  # fmt: skip
    assert p.guarantee.epsilon <= 1.2
    assert p.steps[0].noise_multiplier > p.steps[-1].noise_multiplier
