"""The wheels as users get them: the product's alone does its work, and with that of the papers it has their commands.

Each is installed into an environment of its own, which sees what the wheel declares that it needs, and nothing else:
links to the distributions of the environment that runs this, found by what each requires. `make wheel` runs it.
"""

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CSV = "age,hours,fate\n" + "".join(f"{k % 50},{k % 7},{'no' if k % 2 else 'yes'}\n" for k in range(100))
ASKED = "plan --size 80 --batch 20 --steps 3 --epsilon 4 --delta 1e-3"
DOES = (  # the product, alone
    "epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5",
    f"{ASKED} --out plan.json",
    "train --plan plan.json --task csv:path=own.csv,target=fate --out runs/a --plain",
    "audit --run runs/a --kind replay",
    "report runs/a",
)
NEEDS_PAPERS = (f"{ASKED.replace('plan', 'train', 1)} --task mnist", "reproduce --list", "train --recipe mnist-1.2")
DOES_WITH_PAPERS = ("reproduce proactive2021:closed-form", "recipes", "recipes mnist-1.2")


def build(source: Path, there: Path) -> Path:
    """The wheel of a source tree."""
    found = set(there.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "wheel", "--no-deps", "-w", str(there)]
    subprocess.run([*pip, str(source)], check=True)
    (made,) = set(there.glob("*.whl")) - found
    return made


def needed(wheel: Path, *, but: frozenset[str] = frozenset()) -> set[str]:
    """The distributions that a wheel needs without its extras, and what those need."""
    name = next(name for name in ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    with tempfile.TemporaryDirectory() as there:
        ZipFile(wheel).extract(name, there)
        todo = list(_required(PathDistribution((Path(there) / name).parent).requires, frozenset()))
    found: dict[str, frozenset[str]] = {}
    while todo:
        one = todo.pop()
        if one.name in but or (one.name in found and found[one.name] >= one.extras):
            continue
        found[one.name] = found.get(one.name, frozenset()) | one.extras
        todo += _required(distribution(one.name).requires, found[one.name])
    return set(found)


def _required(lines: list[str] | None, extras: frozenset[str]) -> Iterator[Requirement]:
    for one in map(Requirement, lines or ()):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one


def install(place: Path, wheel: Path, *, but: frozenset[str] = frozenset()) -> None:
    """Put a wheel into an environment, and links to what it needs but for the wheels that are there."""
    (packages,) = place.glob("lib/python*/site-packages")
    for name in needed(wheel, but=but):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                os.symlink(Path(str(found.locate_file(top))), packages / top)
    ZipFile(wheel).extractall(packages)


def privet(place: Path, command: str, *, code: int = 0) -> str:
    """What a command says, run in the environment."""
    main = "import sys; from privet.cli import main; sys.exit(main())"
    done = subprocess.run(
        [place / "bin/python", "-I", "-c", main, *command.split()], cwd=place, capture_output=True, text=True
    )
    print(f"wheel: privet {command}: {done.returncode}", flush=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def main() -> None:
    with tempfile.TemporaryDirectory() as there:
        product, papers = (build(source, Path(there)) for source in (ROOT, ROOT / "papers"))
        place = Path(there) / "venv"
        venv.create(place, with_pip=False, symlinks=True)
        install(place, product)
        asked = "import privet; print(privet.__file__, privet.__version__)"
        where = subprocess.run([place / "bin/python", "-I", "-c", asked], capture_output=True, text=True, check=True)
        assert where.stdout.startswith(str(place.resolve())) or where.stdout.startswith(str(place)), where.stdout
        (place / "own.csv").write_text(CSV)
        for command in DOES:
            privet(place, command)
        for command in NEEDS_PAPERS:
            assert "pip install 'privet[papers]'" in privet(place, command, code=2)
        assert "reproduce" not in privet(place, "--help")
        install(place, papers, but=frozenset({"privet"}))
        assert "reproduce" in privet(place, "--help")
        kept = "from privet_papers.reproduce import results; print(*results.kept().glob('recipes/*/*.json'))"
        assert str(place.name) in subprocess.check_output([place / "bin/python", "-I", "-c", kept], text=True)
        for command in DOES_WITH_PAPERS:
            assert privet(place, command)


if __name__ == "__main__":
    main()
