"""publish(): results and reports become a folder of pages.

    index.html                 runs and trends
    trends/<matrix>.html       every figure over the nights
    runs/<run id>/index.html   a run; beside it a page for each cell, and run.json for the index

A run whose files did not change keeps its pages, and so does one whose raw data are gone. All else
is made again each time, because it is made of small files.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from harness.analysis.summary import Summary, summarise
from harness.compare import baselines, history
from harness.compare.contents import contents
from harness.compare.night import Night, device_in_words
from harness.errors import ResultsError, UsageError
from harness.publish import facts as run_facts
from harness.publish.facts import FACTS_FILE, RunFacts
from harness.publish.gate import Gate, read_gate
from harness.publish.html import render
from harness.publish.run_page import write_run
from harness.publish.trends import Trend, trends
from harness.report import format as fmt
from harness.report import sentences
from harness.report.comparison.baseline import contents_table
from harness.report.tables import Table, label
from harness.report.tables.table import count, shown
from harness.store import RunFolder, told, write_whole

_RUN_NAME = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._-]+")
"""What a run's folder is called. results/ also holds baselines/ and published/."""

_OURS = b"Made by dflashbench"  # in the foot of every page


@dataclass(frozen=True, kw_only=True)
class Published:
    index: Path
    rendered: tuple[str, ...]  # runs whose pages were made
    kept: tuple[str, ...]  # runs whose pages were there


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a run's three folders are, or would be."""

    results: Path
    report: Path
    pages: Path

    @property
    def has_raw_data(self) -> bool:
        return (self.results / "manifest.json").is_file()


def publish(site: Path, *, results_dir: Path, reports_dir: Path, again: bool = False) -> Published:
    """`again`: make every page anew whose raw data are still there. A run that cannot be read keeps
    the pages that it has, and is told once all others have theirs.
    """
    refuse_unfit(site)
    rendered: list[str] = []
    kept: list[str] = []
    listed: list[RunFacts] = []
    unreadable: list[str] = []
    for name in _names(results_dir, reports_dir, site / "runs"):
        place = _Place(
            results=results_dir / name, report=reports_dir / name, pages=site / "runs" / name
        )
        facts = None if again and place.has_raw_data else _still_true(place)
        if facts is None:
            try:
                gate, raw = _read(place)
            except ResultsError as error:
                unreadable.append(str(error))
                listed += filter(None, [run_facts.read(place.pages)])
                continue
            facts = _write_pages(place, gate, raw)
            rendered.append(name)
        else:
            kept.append(name)
        listed.append(facts)
    found = _trends(listed, results_dir, reports_dir)
    for trend in found:
        _write(site / "trends" / trend.file, "trend.html.j2", {"trend": trend})
    _write(site / "index.html", "index.html.j2", _index(listed, found))
    if unreadable:
        raise ResultsError(
            f"{site / 'index.html'} is written, without {fmt.counted(len(unreadable), 'run')} that "
            "cannot be read; restore or remove: " + "; ".join(unreadable)
        )
    return Published(index=site / "index.html", rendered=tuple(rendered), kept=tuple(kept))


def refuse_unfit(site: Path) -> None:
    """A page that somebody else wrote is not ours to replace."""
    index = site / "index.html"
    if site.exists() and not site.is_dir():
        raise UsageError(f"{site} is a file, and a site is a folder; write another name")
    with told(index):
        if index.exists() and _OURS not in index.read_bytes():
            raise UsageError(
                f"{index} was not made by `dflashbench publish` and would be replaced; write "
                "another folder, or move it away"
            )


def _names(results_dir: Path, reports_dir: Path, pages: Path) -> list[str]:
    """Of every run that anything is left of, oldest first."""
    found = {
        path.parent.name
        for folder, file in (
            (results_dir, "manifest.json"),
            (reports_dir, history.NIGHT_FILE),
            (pages, FACTS_FILE),
        )
        for path in folder.glob(f"*/{file}")
    }
    return sorted(name for name in found if _RUN_NAME.fullmatch(name))


def _write(path: Path, template: str, content: Mapping[str, object]) -> None:
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(template, content))


# --- a run ----------------------------------------------------------------------------------------


def _still_true(place: _Place) -> RunFacts | None:
    """What stands beside the run's pages; None: they have to be made."""
    facts = run_facts.read(place.pages)
    if facts is None or not place.has_raw_data:
        return facts
    return facts if facts.source == _source(place) else None


def _source(place: _Place) -> str:
    """A hash over the sizes and times of the files that the pages are made of, and over how."""
    files = [*place.results.glob("*.json*"), *place.report.glob(history.COMPARISON_FILE)]
    marks = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    digest = hashlib.sha256("\n".join(sorted(marks)).encode())
    templates = resources.files("harness.publish").joinpath("templates")
    for template in sorted(templates.iterdir(), key=str):
        digest.update(template.read_bytes())
    return digest.hexdigest()[:12]


def _read(place: _Place) -> tuple[Gate | None, Summary | Night]:
    gate = read_gate(place.report)
    if place.has_raw_data:
        return gate, summarise(RunFolder.open(place.results))
    return gate, history.read(place.report / history.NIGHT_FILE)


def _write_pages(place: _Place, gate: Gate | None, raw: Summary | Night) -> RunFacts:
    """run.json comes last: a page without it is made again."""
    if isinstance(raw, Night):
        _write_night(place.pages, raw, gate)
        facts = _facts_of_night(place, raw, gate)
    else:
        write_run(raw, gate, place.pages)
        facts = _facts(place, raw, gate)
    with told(place.pages):
        write_whole(place.pages / FACTS_FILE, msgspec.json.encode(facts))
    return facts


def _write_night(pages: Path, night: Night, gate: Gate | None) -> None:
    """What the report's folder kept. Pages that were made of the raw data know more and stay."""
    if (pages / "index.html").exists():
        return
    content = {
        "night": night,
        "gate": gate,
        "figures": contents_table(contents([night])),
        "verdicts": [(item.variant, item.work, item.verdicts) for item in night.subjects],
    }
    _write(pages / "index.html", "night.html.j2", content)


def _facts(place: _Place, summary: Summary, gate: Gate | None) -> RunFacts:
    manifest, views, sessions = summary.manifest, summary.data.views, summary.data.sessions
    return RunFacts(
        format=run_facts.FORMAT,
        source=_source(place),
        folder=place.pages.name,
        run_id=manifest.run_id,
        name=manifest.name,
        created_at=manifest.created_at,
        purpose=manifest.purpose,
        level=summary.level,
        headline=sentences.headline(summary),
        variants=tuple(dict.fromkeys(view.cell.variant for view in views)),
        device=device_in_words(sessions[-1].machine) if sessions else "no session",
        commit=sessions[-1].commit if sessions else None,
        num_cells=len(views),
        num_requests=sum(len(view.requests) for view in views),
        word=gate.word if gate else None,
        gate=gate.headline if gate else None,
    )


def _facts_of_night(place: _Place, night: Night, gate: Gate | None) -> RunFacts:
    return RunFacts(
        format=run_facts.FORMAT,
        source="",
        folder=place.pages.name,
        run_id=night.run_id,
        name=history.matrix_of(night.run_id),
        created_at=night.created_at,
        purpose=night.purpose,
        level=night.level,
        headline="",
        variants=tuple(dict.fromkeys(item.variant for item in night.subjects)),
        device=night.device,
        commit=night.commit,
        num_cells=sum(item.cell is not None for item in night.subjects),
        num_requests=None,
        word=gate.word if gate else None,
        gate=gate.headline if gate else None,
    )


# --- all of them ----------------------------------------------------------------------------------


def _trends(listed: Sequence[RunFacts], results_dir: Path, reports_dir: Path) -> tuple[Trend, ...]:
    """Over the nights beside reports and those that baselines hold."""
    stored = [baselines.load(results_dir, name) for name in baselines.names(results_dir)]
    nights = {night.run_id: night for baseline in stored for night in baseline.nights}
    nights |= {night.run_id: night for night in history.nights(reports_dir)}
    in_order = sorted(nights.values(), key=lambda night: night.created_at)
    pages = {facts.run_id: f"../runs/{facts.folder}/index.html" for facts in listed}
    return trends(in_order, stored, pages)


def _index(listed: Sequence[RunFacts], found: Sequence[Trend]) -> Mapping[str, object]:
    newest_first = sorted(listed, key=lambda facts: facts.created_at, reverse=True)
    return {
        "runs": _runs_table(newest_first),
        "links": [f"runs/{facts.folder}/index.html" for facts in newest_first],
        "latest": newest_first[0] if newest_first else None,
        "trends": found,
    }


def _runs_table(listed: Sequence[RunFacts]) -> Table:
    return Table(
        name="runs",
        title="Runs, the newest first",
        columns=(
            "run",
            "day",
            "verdict",
            "against baseline",
            "variants",
            "cells",
            "requests",
            "device",
            "commit",
        ),
        rows=tuple(
            (
                label(facts.run_id),
                label(facts.created_at[:10]),
                label(facts.level if facts.purpose != "smoke" else f"smoke, {facts.level}"),
                label(facts.word or fmt.DASH),
                label(", ".join(facts.variants)),
                count(facts.num_cells),
                shown(facts.num_requests, str),
                label(facts.device),
                label((facts.commit or "unknown")[:12]),
            )
            for facts in listed
        ),
        num_labels=1,
    )
