"""Writes the page of a report from its template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pfl_fast import __version__, atomic
from pfl_fast.comparison.results import run_folders
from pfl_fast.errors import ConfigError
from pfl_fast.report.analyses import read_analyses
from pfl_fast.report.sections import sections
from pfl_fast.report.stored_run import StoredRun, read_labelled
from pfl_fast.report.svg import colour, dash

MARK = '<meta name="generator" content="pfl-fast'  # reports replace reports, and no other files


def write(
    runs: str | Path | Iterable[str | Path], out: str | Path = "report.html", *, title: str | None = None
) -> Path:
    """Writes a report of one or several runs as a single HTML file; returns its path.

    Args:
        runs: run folders, or folders of comparisons for all their runs; finished or not.
        out: file to write; an earlier report is replaced, any other file is refused.
        title: heading of the page; None: methods and data sets.
    """
    given = [runs] if isinstance(runs, (str, Path)) else list(runs)
    folders = list(dict.fromkeys(run_folders(Path(folder) for folder in given)))
    if not folders:
        raise ConfigError("runs: give at least one run folder")
    target = Path(out)
    _refuse_other_files(target)
    page = render(read_labelled(folders), title)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(target, page)
    except OSError as error:
        raise ConfigError(f"out: {target} cannot be written ({error.strerror}); choose another file") from None
    return target


def render(runs: Sequence[StoredRun], title: str | None = None) -> str:
    """Returns the page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    package = files("pfl_fast.report")
    template = environment.from_string((package / "page.html").read_text())
    analyses = [found for n, run in enumerate(runs) for found in read_analyses(run.folder, n, run.label)]
    return template.render(
        version=__version__,
        title=title or _title(runs),
        style=Markup((package / "page.css").read_text()),
        runs=[(run.label, run, colour(number), dash(number)) for number, run in enumerate(runs)],
        sections=sections(runs),
        analyses=analyses,
    )


def _title(runs: Sequence[StoredRun]) -> str:
    methods = ", ".join(dict.fromkeys(run.label.split(" ", 1)[0] for run in runs))
    return f"{methods} on {', '.join(dict.fromkeys(str(run.settings['dataset']) for run in runs))}"


def _refuse_other_files(target: Path) -> None:
    if target.is_dir():
        raise ConfigError(f"out: {target} is a folder; give the name of a file, such as {target / 'report.html'}")
    if target.exists() and MARK not in target.read_text(errors="replace")[:2000]:
        raise ConfigError(f"out: {target} exists and is not a report; choose another file")
