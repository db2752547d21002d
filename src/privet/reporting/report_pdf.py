"""A report as PDF, if a program is there that prints web pages."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from privet._registry import shortened
from privet.errors import InvalidValue, MissingExtra

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
SECONDS = 120


def printer() -> str | None:
    """The browser that prints, by its path; None if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name)) is not None), None)


def pdf(page: str) -> bytes:
    """The page as it is printed.

    Raises:
        MissingExtra: no browser is there.
        InvalidValue: it does not print.
    """
    browser = printer()
    if browser is None:
        raise MissingExtra(
            "no program that prints web pages is there. A PDF needs Chromium or Chrome. Install one, or write .html "
            "and print it from your browser."
        )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8", errors="replace")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", source.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium does not start otherwise; the page is ours and has no script
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
            said = done.stderr.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if not made.exists():
            last = shortened(" ".join(said.split())[-200:], 200)
            raise InvalidValue(f"{browser}: made no PDF: {last}. Write .html, and print it from your browser.")
        return made.read_bytes()
