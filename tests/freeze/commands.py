"""Commands on toy inputs, one after the other in one folder: what they print with --json, refuse, leave in files."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from freeze import files, toy
from freeze.renames import argv, keyed, name

TINY = "--task freeze.toy:task"
BASE = "--size 600 --batch 60 --steps 40 --delta 1e-4"
RHO = "--rho-noise 2 --rho-clip 1.5"
METHODS = (
    "noisy-sgd", "noisy-adam", "growing-mu", "sensitivity-decay", "dynamic", "noise-decay-zcdp", "noise-decay-tcdp",
    "proactive", "auto-linear", "auto-time", "auto-step", "auto-exp", "dp-baseline", "dyn-s-l2max", "dyn-s-cdecay",
    "dyn-s", "dyn-sigma", "dyn-s-l2max-sigma", "dyn-s-cdecay-sigma", "dyn-s-sigma", "quantile", "adaclip",
)  # fmt: skip
SHAPES = (
    "linear:end=0.5", "exponential:decay=0.02", "time:decay=0.1", "step:every=10,factor=0.8", "cosine:end=0.2",
    "cyclic:half=5,decay=0.1", "piecewise:0=1,0.5=0.7,1=0.6",
)  # fmt: skip
ACCOUNTANTS = (
    "pld", "rdp", "gdp", "basic", "advanced", "optimal", "moments", "zcdp", "tcdp", "basic-wei", "advanced-wei",
    "optimal-wei", "proactive",
)  # fmt: skip

RULES = ("flat", "per_layer", "normalised", "quantile", "adaclip", "own_norm", "l2_max", "per_layer_c", "nope")
PLANS = (
    "--unit client", "--unit user", "--relation add-remove", "--relation replace", "--sampling shuffled",
    "--relation replace --sampling fixed-size --accountant rdp", "--sampling fixed-size --accountant rdp",
    "--sampling truncated-poisson:cap=120,size=600", "--clip 0.3", "--trials 5",
    "--trials 5 --trials-law disjoint", "--trials-mean 5 --trials-law geometric",
    "--trials-mean 5 --trials-law poisson", "--accountant os.path:join", "--rule os.path:join", "--delta 2",
)  # fmt: skip


def lines() -> list[tuple[str, str]]:
    """Every command line, and its mark in commands.txt."""
    found = []
    for line in Path(__file__).with_name("commands.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            found.append((line[0], line[2:].format(base=BASE, rho=RHO, tiny=TINY)))
    return found + [(" ", line) for line in _variants()]


def _variants() -> Iterator[str]:
    budget = f"plan {BASE} --epsilon 2"
    for method in METHODS:
        needs = {"growing-mu": " --rho-noise 2", "sensitivity-decay": " --rho-clip 2", "dynamic": f" {RHO}"}
        given = f"--method {method}{needs.get(method, '')}"
        yield from (f"{budget} {given}", f"{budget} {given} --as-published", f"methods {method}")
        yield f"plan {BASE} --noise 2 --solve epsilon {given} --as-published"
    for shape in SHAPES:
        yield f"{budget} --noise-schedule {shape}"
        yield f"{budget} --batch-schedule {shape} --clip-schedule {shape}"
        yield f"schedules --show {shape} --steps 12"
    for rule in RULES:
        yield f"{budget} --rule {rule}"
    yield from (f"{budget} {more}" for more in PLANS)
    yield from (f"{budget} --accountant {one}" for one in ACCOUNTANTS)


def write_inputs() -> None:
    toy.write_csv(Path("toy.csv"))
    base = {
        "epsilon": 2.0,
        "delta": 1e-4,
        "size": 600,
        "batch": 60,
        "steps": 40,
        "noise": "linear:end=0.5",
        "clip": 0.8,
    }
    _write_toml("recipe.toml", base)
    training = {"lr": 0.5, "optimizer": "sgd", "momentum": 0.5}
    _write_toml(
        "recipe-toy.toml", base | {"size": toy.SIZE, "batch": 20, "steps": 5, "rule": "per_layer", "training": training}
    )
    Path("opacus.json").write_text(json.dumps([[1.1, 0.01, 500], [0.9, 0.01, 100]]))
    Path("steps.csv").write_text("noise,rate,count\n1.5,0.1,20\n2.5,0.2,5\n")
    ledger = {"steps": [{"noise": 1.1, "rate": 0.01, "count": 500}, {"noise": 2.0, "rate": 0.02, "count": 9}]}
    Path("ledger.json").write_text(json.dumps({"format": "privet-ledger", "version": 1} | ledger))
    gaussian = {"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}
    event = {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": gaussian}
    Path("event.json").write_text(json.dumps({"class_name": "SelfComposedDpEvent", "count": 50, "event": event}))


def _write_toml(file: str, recipe: dict[str, Any]) -> None:
    flat = keyed({"recipe": recipe})["recipe"]
    tables = {key: value for key, value in flat.items() if isinstance(value, dict)}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in flat.items() if key not in tables)
    for head, table in tables.items():
        text += f"[{head}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    Path(file).write_text(text)


def run(line: str) -> dict[str, Any]:
    """What the command prints; what it prints with an error is one line, and in words."""
    from click.testing import CliRunner

    result = CliRunner().invoke(name("privet.cli:main"), argv([*shlex.split(line), "--json"]))
    found: dict[str, Any] = {"exit": result.exit_code}
    if result.stdout:
        try:
            found["json"] = json.loads(result.stdout)
        except ValueError:
            found["text"] = result.stdout.splitlines()
    if result.exit_code:
        found["refusal"] = [one for one in result.stderr.splitlines() if one.startswith("privet:")]
    return found


def probe(*, quick: bool) -> dict[str, Any]:
    write_inputs()
    found = {}
    for mark, line in lines():
        if mark == "*" or not quick:
            found[line] = run(line)
            if mark == "-":
                found[line] = {"exit": found[line]["exit"]}
    for cache in Path().rglob("__pycache__"):
        shutil.rmtree(cache)
    return found | {f"files of {top}": value for top, value in _left_behind().items()}


def _left_behind() -> dict[str, Any]:
    """What lies in each folder; of private runs only what does not hang on their randomness."""
    found = {str(place): files.folder(place) for place in sorted(Path().iterdir()) if place.is_dir()}
    for key in [key for key in found.get("private", ()) if not key.endswith(("ledger.jsonl", "plan.json"))]:
        del found["private"][key]
    return found | {"here": files.folder(Path(), deep=False)}
