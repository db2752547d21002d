"""The application: the page, its questions, the downloads, and the gallery of runs."""

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from privet._registry import shortened
from privet.errors import PrivetError
from privet.planning import METHODS, Plan, Recipe, plan
from privet.planning.plan_file import text_of
from privet.web import answers, work
from privet.web.gallery import Gallery
from privet.web.guard import Door, Guard
from privet.web.questions import MOST_STEPS, command_of, recipe_of, toml_of
from privet.web.work import Broken, Busy, Desk, Gone, Late, in_thread

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
        _, said = await self._planned(request, recipe_of(await body_of(request)))
        return JSONResponse(said)

    async def curves(self, request: Request) -> Response:
        return await self._of_plan(request, answers.curves_answer)

    async def attacker(self, request: Request) -> Response:
        return await self._of_plan(request, answers.attacker_answer)

    async def ahead(self, request: Request) -> Response:
        recipe = recipe_of(await body_of(request))
        return JSONResponse(await self._asked(request, recipe, "ahead", answers.ahead_answer, recipe))

    async def plan_file(self, request: Request) -> Response:
        found, _ = await self._planned(request, recipe_of(dict(request.query_params)))
        text = text_of(found.as_dict())
        return _download(text, "plan.json", "application/json")

    async def recipe_file(self, request: Request) -> Response:
        return _download(toml_of(recipe_of(dict(request.query_params))), "recipe.toml", "application/toml")

    async def runs(self, request: Request) -> Response:
        return JSONResponse(await in_thread(self.gallery.entries, request.is_disconnected))

    async def report(self, request: Request) -> Response:
        found = await asyncio.to_thread(self.gallery.report, request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such report.")
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(found, media_type="text/html", headers=headers)

    async def _of_plan(self, request: Request, make: Callable[[Plan], Any]) -> Response:
        recipe = recipe_of(await body_of(request))
        found, _ = await self._planned(request, recipe)
        return JSONResponse(await self._asked(request, recipe, make.__name__, make, found))

    async def _planned(self, request: Request, recipe: Recipe) -> tuple[Plan, dict[str, Any]]:
        found: tuple[Plan, dict[str, Any]] = await self._asked(request, recipe, "plan", planned, recipe)
        return found

    async def _asked(
        self, request: Request, recipe: Recipe, what: str, make: Callable[[Any], Any], given: "Plan | Recipe"
    ) -> Any:
        """What `make` gives, computed in another process, or a line that says what to do if that takes too long."""
        try:
            return await self.desk.answer((what, recipe), partial(make, given), request.is_disconnected)
        except Late:
            raise HTTPException(504, too_long(recipe)) from None


def application(*, door: Door, runs: Path) -> Guard:
    """The whole of it, behind its guard."""
    page = Page(runs)
    routes = [
        Route("/", page.file),
        Route("/static/{name:path}", page.file),
        Route("/api/options", page.options),
        Route("/api/plan", page.plan, methods=["POST"]),
        Route("/api/curves", page.curves, methods=["POST"]),
        Route("/api/attacker", page.attacker, methods=["POST"]),
        Route("/api/ahead", page.ahead, methods=["POST"]),
        Route("/api/plan.json", page.plan_file),
        Route("/api/recipe.toml", page.recipe_file),
        Route("/api/runs", page.runs),
        Route("/runs/{name}/report.html", page.report),
    ]
    handlers: dict[Any, Any] = {
        PrivetError: lambda _, error: _error(400, str(error)),
        HTTPException: lambda _, error: _error(error.status_code, error.detail, error.headers),
        Busy: lambda _, error: _error(503, "too much is asked at once. Try again in a moment."),
        Gone: lambda _, error: _error(499, "the client has left."),
        Broken: lambda _, error: _error(500, f"internal error: {error}"),
        Exception: lambda _, error: _error(500, f"internal error: {type(error).__name__}"),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), door)


def too_long(recipe: Recipe) -> str:
    """What to say of a question that is too hard for a page."""
    return (
        f"this takes more than {work.LONGEST:g} seconds, which is all that the page may take for a question. "
        "Ask for fewer steps, a larger delta, or a rho nearer to 1; or plan without a limit, on the command line: "
        f"{command_of(recipe)}"
    )


def planned(recipe: Recipe) -> tuple[Plan, dict[str, Any]]:
    """The plan, and what the page shows of it."""
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


async def body_of(request: Request) -> Any:
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


def _error(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": shortened(" ".join(message.split()), 400)}, status_code=status, headers=headers)


def _download(text: str, name: str, kind: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=kind, headers=headers)
