"""The runs in a folder: name, guarantee, held-out scores, and the report of each. Nothing outside it is reached."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from privet._files import is_plain_file
from privet._text import one_line, shorten
from privet.accounting.guarantee import format_outward
from privet.errors import InvalidValue, PrivetError
from privet.ledger.runs import OneRun, compose_runs, find_run_folders, read, select_dataset
from privet.ledger.total import NAME as BUDGET, read as budget_of
from privet.planning import METHODS, Plan, Recipe, plan
from privet.planning.plan import plan_text
from privet.web import answers, work
from privet.web.answers import guarantee_answer
from privet.web.guard import Door, Guard
from privet.web.questions import MOST_STEPS, recipe_from_controls, recipe_to_command, recipe_to_toml
from privet.web.work import Broken, Busy, Desk, Gone, Late, run_in_thread

REPORT, ABOUT, LEDGER = "report.html", "run.json", "ledger.jsonl"
READ = (ABOUT, "plan.json", LEDGER, "metrics.jsonl")  # what a run's entry is made of
MOST_RUNS = 100


class Gallery:
    """The runs in a folder. An entry is made again when one of its files has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._kept: dict[str, tuple[object, dict[str, Any]]] = {}
        self._sums: tuple[object, list[dict[str, Any]]] | None = None

    def entries(self, alive: Callable[[], None]) -> dict[str, Any]:
        """Every run in order of its name: what it guarantees and how well it does, or why it cannot be read."""
        folders = list(self._folders())
        runs = []
        for folder in folders[:MOST_RUNS]:
            alive()
            runs.append(self._entry(folder))
        return {
            "folder": self._root.name, "runs": runs, "left_out": max(0, len(folders) - MOST_RUNS),
            "together": self._dataset_costs(alive),
        }  # fmt: skip

    def report(self, name: str) -> bytes | None:
        """The report of the run called `name`, if it has one that lies in its folder."""
        folder = next((found for found in self._folders() if found.name == name), None)
        try:
            return None if folder is None or not is_plain_file(folder / REPORT) else (folder / REPORT).read_bytes()
        except OSError:
            return None

    def _folders(self) -> Iterator[Path]:
        """The folders of runs that stand in the root themselves: a link may lead anywhere."""
        try:
            found = sorted(self._root.iterdir())
        except OSError:
            return
        for folder in found:
            if not folder.is_symlink() and folder.is_dir() and is_plain_file(folder / ABOUT):
                yield folder

    def _dataset_costs(self, alive: Callable[[], None]) -> list[dict[str, Any]]:
        """For each dataset with several runs in the folder what they cost together, or why that cannot be told."""
        try:
            places = list(find_run_folders(self._root))
            stamps = ((place, _file_stamp(place / LEDGER), _file_stamp(place / ABOUT)) for place in places)
            stamp = (_file_stamp(self._root / BUDGET), *stamps)
            if self._sums is None or self._sums[0] != stamp:
                runs = [_read_one_run(place, alive) for place in places]
                self._sums = stamp, _dataset_sums(self._root, runs, alive)
            return self._sums[1]
        except PrivetError as error:
            said = one_line(error).replace(f"{self._root}/", "").replace(str(self._root), self._root.name)
            return [{"dataset": None, "runs": None, "error": shorten(said, 300)}]

    def _entry(self, folder: Path) -> dict[str, Any]:
        stamp = tuple(_file_stamp(folder / name) for name in READ)
        kept = self._kept.get(folder.name)
        if kept is None or kept[0] != stamp:
            kept = self._kept[folder.name] = (stamp, _read(folder))
        name = folder.name.encode("utf-8", "replace").decode()
        has_report = is_plain_file(folder / REPORT) and name == folder.name
        return kept[1] | {"name": name, "report": has_report}


def _read_one_run(folder: Path, alive: Callable[[], None]) -> OneRun:
    """The run in a folder, from files of its own alone."""
    alive()
    for name in (LEDGER, ABOUT):
        file = folder / name
        if file.is_symlink() or (file.exists() and not is_plain_file(file)):
            raise InvalidValue(f"{file}: is a link, no plain file, or very large. It is not read here.")
    return read(folder)


def _dataset_sums(root: Path, runs: list[OneRun], alive: Callable[[], None]) -> list[dict[str, Any]]:
    totals = budget_of(root)
    names = sorted({run.header.dataset for run in runs if run.header.dataset is not None})
    found: list[dict[str, Any]] = []
    for name in (*names,) or (None,):
        alive()
        chosen = select_dataset(runs, name)
        if len(chosen) < 2:
            continue
        row: dict[str, Any] = {"dataset": name, "runs": len(chosen)}
        try:
            row["guarantee"] = guarantee_answer(compose_runs(chosen))
        except PrivetError as error:
            row["error"] = shorten(f"guarantee: none. {one_line(error)}".replace(f"{root}/", ""), 300)
        if name in totals:
            row["total"] = format_outward(totals[name].epsilon, up=True)
        found.append(row)
    return found


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(folder: Path) -> dict[str, Any]:
    from privet.ledger.assumptions import list_assumptions
    from privet.training.progress import format_scores
    from privet.training.run import Run

    there = [name for name in READ if (folder / name).is_symlink() or (folder / name).exists()]
    if not all(is_plain_file(folder / name) for name in there):
        return {"error": "one of its files is a link, no plain file, or very large."}
    try:
        run = Run.load(folder)
        public = {key: value for key, value in (run.scores or {}).items() if key.startswith("held_out_")}
        return {
            "guarantee": guarantee_answer(run.guarantee), "assumes": list(list_assumptions(run.guarantee)),
            "dataset": run.dataset, "task": run.settings.task, "steps": run.steps, "planned": len(run.plan.steps),
            "over": run.is_over, "method": run.plan.recipe.method, "held_out": format_scores(public),
            "evaluation": run.evaluation,
        }  # fmt: skip
    except PrivetError as error:
        return {"error": shorten(one_line(error).replace(str(folder), folder.name), 200)}
    except Exception as error:  # one strange run must not hide the others
        return {"error": f"cannot be read: {type(error).__name__}"}


MOST_BYTES = 64 * 1024  # of a request
BODY_SECONDS = 10.0
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# A report may hold scripts of its own. It is shown apart from the page's origin, and can send nothing anywhere.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; font-src data:; frame-ancestors 'none'"
)


class Page:
    """The handlers of one server."""

    def __init__(self, runs: Path) -> None:
        self.desk, self.gallery, self.files = Desk(), Gallery(runs), static_files()

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            raise HTTPException(404, "there is no such page.")
        kind, content = self.files[name]
        return Response(content, media_type=kind)

    async def options(self, _: Request) -> Response:
        rows = [row.as_dict() for row in METHODS.values()]
        return JSONResponse({"methods": rows, "most_steps": MOST_STEPS})

    async def plan(self, request: Request) -> Response:
        _, said = await self._plan_recipe(request, recipe_from_controls(await read_body(request)))
        return JSONResponse(said)

    async def ahead(self, request: Request) -> Response:
        recipe = recipe_from_controls(await read_body(request))
        return JSONResponse(await self._compute(request, recipe, "ahead", answers.ahead_answer, recipe))

    async def plan_file(self, request: Request) -> Response:
        found, _ = await self._plan_recipe(request, recipe_from_controls(dict(request.query_params)))
        return _download_response(plan_text(found.as_dict()), "plan.json", "application/json")

    async def recipe_file(self, request: Request) -> Response:
        text = recipe_to_toml(recipe_from_controls(dict(request.query_params)))
        return _download_response(text, "recipe.toml", "application/toml")

    async def runs(self, request: Request) -> Response:
        return JSONResponse(await run_in_thread(self.gallery.entries, request.is_disconnected))

    async def report(self, request: Request) -> Response:
        found = await asyncio.to_thread(self.gallery.report, request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such report.")
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(found, media_type="text/html", headers=headers)

    async def answer_plan(self, request: Request, *, make: Callable[[Plan], Any]) -> Response:
        recipe = recipe_from_controls(await read_body(request))
        found, _ = await self._plan_recipe(request, recipe)
        return JSONResponse(await self._compute(request, recipe, make.__name__, make, found))

    async def _plan_recipe(self, request: Request, recipe: Recipe) -> tuple[Plan, dict[str, Any]]:
        found: tuple[Plan, dict[str, Any]] = await self._compute(request, recipe, "plan", make_plan, recipe)
        return found

    async def _compute(
        self, request: Request, recipe: Recipe, what: str, make: Callable[[Any], Any], given: "Plan | Recipe"
    ) -> Any:
        """What `make` gives, computed in another process, or a line that says what to do if that takes too long."""
        try:
            return await self.desk.answer((what, recipe), partial(make, given), request.is_disconnected)
        except Late:
            raise HTTPException(504, too_long_message(recipe)) from None


def application(*, door: Door, runs: Path) -> Guard:
    """The whole of it, behind its guard."""
    page = Page(runs)
    routes = [
        Route("/", page.file), Route("/static/{name:path}", page.file), Route("/api/options", page.options),
        Route("/api/plan", page.plan, methods=["POST"]), Route("/api/ahead", page.ahead, methods=["POST"]),
        Route("/api/curves", partial(page.answer_plan, make=answers.curves_answer), methods=["POST"]),
        Route("/api/attacker", partial(page.answer_plan, make=answers.attacker_answer), methods=["POST"]),
        Route("/api/plan.json", page.plan_file), Route("/api/recipe.toml", page.recipe_file),
        Route("/api/runs", page.runs), Route("/runs/{name}/report.html", page.report),
    ]  # fmt: skip
    handlers: dict[Any, Any] = {
        PrivetError: lambda _, error: _error_response(400, str(error)),
        HTTPException: lambda _, error: _error_response(error.status_code, error.detail, error.headers),
        Busy: lambda _, error: _error_response(503, "too much is asked at once. Try again in a moment."),
        Gone: lambda _, error: _error_response(499, "the client has left."),
        Broken: lambda _, error: _error_response(500, f"internal error: {error}"),
        Exception: lambda _, error: _error_response(500, f"internal error: {type(error).__name__}"),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), door)


def too_long_message(recipe: Recipe) -> str:
    """What to say of a question that is too hard for a page."""
    return (
        f"this takes more than {work.LONGEST_WORK:g} seconds, which is all that the page may take for a question. "
        "Ask for fewer steps, a larger delta, or a rho nearer to 1; or plan without a limit, on the command line: "
        f"{recipe_to_command(recipe)}"
    )


def make_plan(recipe: Recipe) -> tuple[Plan, dict[str, Any]]:
    start = time.perf_counter()
    found = plan(recipe)
    return found, answers.plan_answer(found, time.perf_counter() - start)


def static_files() -> dict[str, tuple[str, bytes]]:
    """Everything that the page is made of, by name: no path of a request ever touches the disk."""
    root = resources.files("privet.web") / "static"
    found = {}
    for folder, prefix in ((root, ""), (root / "vendor", "vendor/")):
        for file in folder.iterdir():
            kind = KINDS.get(Path(file.name).suffix)
            if kind is not None:
                found[prefix + file.name] = (kind, file.read_bytes())
    return found


async def read_body(request: Request) -> Any:
    """The JSON of a request, if it comes in time and is not large.

    Raises:
        HTTPException: it does not, or is not JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the request must be application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, f"the request must be at most {MOST_BYTES // 1024} KB.", _CLOSE)
    except TimeoutError:
        raise HTTPException(408, f"the request must come within {BODY_SECONDS:g} seconds.", _CLOSE) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not JSON.") from None


_CLOSE = {"connection": "close"}  # what is left of the body is not read


def _error_response(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": shorten(" ".join(message.split()), 400)}, status_code=status, headers=headers)


def _download_response(text: str, name: str, kind: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=kind, headers=headers)
