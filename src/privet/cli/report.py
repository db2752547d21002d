"""`privet report`: one page about a run."""

from pathlib import Path

import click

from privet.cli.common import PATH, print_object, progress_bar, warnings_as_lines


@click.command("report", short_help="Write a privacy report about a run.")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN [BASELINE]...")
@click.option("--out", type=PATH, multiple=True, metavar="FILE", help="Where to: .html, .md, .json, or .pdf (if "
              "Chromium is there); may be given several times. Default: report.html in the run's folder, "
              "with --show-private raw_report.html.")  # fmt: skip
@click.option("--title", metavar="TEXT", help="The heading.")
@click.option("--show-private", is_flag=True, help="Also show what is computed from training data without noise: "
                                                   "attack successes, pictures, training loss, a baseline without "
                                                   "privacy.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def report_command(
    *, runs: tuple[Path, ...], out: tuple[Path, ...], title: str | None, show_private: bool, as_json: bool
) -> None:
    """Write a report about a run: its guarantee and what it means, accuracy, and what audits and attacks found.

    The report is one self-contained page without scripts. Further runs are baselines that the first is compared with.
    Run `privet audit --run` and `privet attack --run` first to have their results in it.

    \b
    Examples:
      privet report runs/a
      privet report runs/a runs/constant --out report.html --out report.md
      privet report runs/a --out report.pdf
    """
    from privet.reporting.report import NAME, check_path, report

    name = f"raw_{NAME}" if show_private else NAME  # what is not private is called so, and no gallery shows it
    places = out or (() if as_json else (runs[0] / name,))
    for place in out:
        check_path(place)
    with warnings_as_lines(), progress_bar("reading"):
        found = report(*runs, show_private=show_private, title=title)
        written = [found.save(place) for place in places]
    for one in found.runs:
        if one.damage:
            click.echo(f"privet: warning: the weights cannot be read: {one.damage} The ledger is whole.", err=True)
    if as_json:
        print_object(found.as_dict() | {"files": [str(place) for place in written]})
        return
    run = found.runs[0].run
    none = f"guarantee: none ({run.why_none})\n  the claim: " if run.why_none else ""
    click.echo(f"{found.title}\n  {none}{run.guarantee}")
    for place in written:
        click.echo(f"  wrote {click.format_filename(place)}")
    if show_private:
        click.echo("privet: the report shows figures that are not private. Share it with care.", err=True)
