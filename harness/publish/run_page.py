"""A run's own page: what its report says, its cells, and the variants' outputs side by side."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.analysis.metrics import HEADLINE
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.differences import Pair, is_compared, judged
from harness.publish.cell_page import cell_page, is_withheld
from harness.publish.gate import Gate
from harness.publish.html import from_first_difference, render
from harness.records import Request
from harness.report import format as fmt
from harness.report import page, plots
from harness.report.plots import Picture
from harness.report.tables import Entry, Table, label
from harness.report.tables.figures import Figures
from harness.report.tables.table import count
from harness.store import told, write_whole


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a variant wrote. `same` is what it shares with the reference's text, from the start."""

    variant: str
    same: str
    different: str
    remark: str


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """One prompt's outputs, a variant each."""

    workload: str
    prompt_id: str
    kind: str
    outputs: tuple[Output, ...]

    @property
    def num_different(self) -> int:
        return sum(bool(output.different) for output in self.outputs)


def write_run(summary: Summary, gate: Gate | None, folder: Path) -> None:
    """index.html and a page for each cell."""
    files = _cell_files(summary)
    pictures = plots.pictures(summary)
    run = {
        **page.content(summary, pictures),
        "gate": gate,
        "cells_table": _cells(summary),
        "files": files,
        "addresses": _addresses(pictures),
        "side_by_side": side_by_side(summary),
        "matrix_yaml": summary.manifest.matrix_yaml,
    }
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for view in summary.data.views:
            write_whole(folder / files[view.cell.cell_id], cell_page(summary, view))
        write_whole(folder / "index.html", render("run.html.j2", run))


def _cell_files(summary: Summary) -> Mapping[str, str]:
    """Cell id -> its page. The number keeps apart what a slug would make equal."""
    return {
        view.cell.cell_id: f"{number}-{fmt.slug(view.cell.cell_id)[:80]}.html"
        for number, view in enumerate(summary.data.views, start=1)
    }


# --- cells ----------------------------------------------------------------------------------------


def _cells(summary: Summary) -> Table:
    """A line per cell: what it is, its headline figures, and what the checks say."""
    sections = {
        view.cell.cell_id: section for section in summary.sections for view in section.views
    }
    return Table(
        name="cells",
        title="Each cell leads to its figures and raw requests",
        columns=(
            "variant",
            "workload",
            "c",
            "tok/s",
            "speed-up",
            "TTFT p50, ms",
            "tok/round",
            "requests",
            "verdict",
            "checks that accuse it",
        ),
        rows=tuple(
            _cell_entries(summary, sections[view.cell.cell_id], view) for view in summary.data.views
        ),
        num_labels=2,
    )


def _cell_entries(summary: Summary, section: Section, view: CellView) -> tuple[Entry, ...]:
    figures = Figures(summary)
    verdicts = summary.verdicts_of(view)
    checks = ", ".join(dict.fromkeys(verdict.check for verdict in verdicts))
    return (
        replace(label(view.cell.variant), cell_id=view.cell.cell_id),
        label(section.word),
        count(view.cell.concurrency),
        figures.entry(view, HEADLINE[section.workload], fmt.rate),
        figures.entry(view, "speedup", fmt.times),
        figures.entry(view, "ttft_p50", fmt.milliseconds),
        figures.entry(view, "acceptance_length", fmt.length),
        count(len(view.requests)),
        label(verdicts[0].level if verdicts else "ok"),
        label(checks or fmt.DASH),
    )


# --- pictures -------------------------------------------------------------------------------------


def _addresses(pictures: Sequence[Picture]) -> Mapping[str, str]:
    """By name, an address that holds the whole picture. They are drawn anew, so that they show what
    the tables beside them say.
    """
    with TemporaryDirectory() as folder:
        return {picture.name: _drawn(picture, Path(folder)) for picture in pictures}


def _drawn(picture: Picture, folder: Path) -> str:
    plots.save(picture, folder)
    drawn = base64.b64encode((folder / f"{picture.name}.svg").read_bytes()).decode()
    return f"data:image/svg+xml;base64,{drawn}"


# --- outputs side by side -------------------------------------------------------------------------


def side_by_side(summary: Summary) -> list[SideBySide]:
    """Of requests that ran alone: the first output of each variant."""
    return [
        SideBySide(workload=section.word, prompt_id=prompt_id, kind=kind, outputs=outputs)
        for section in summary.sections
        if section.load == "single"
        for prompt_id, kind in section.views[0].prompt_kinds.items()
        if (outputs := tuple(_outputs(summary, section, prompt_id)))
    ]


def _outputs(summary: Summary, section: Section, prompt_id: str) -> list[Output]:
    if is_withheld(summary, section.views[0], prompt_id):
        return [
            Output(variant=variant, same="", different="", remark="not published")
            for variant in section.variants
        ]
    written = {view.cell.cell_id: _first_written(view, prompt_id) for view in section.views}
    return [
        _output(view, own, written.get(view.cell.reference_cell_id or ""))
        for view in section.views
        if (own := written[view.cell.cell_id]) is not None
    ]


@dataclass(frozen=True, kw_only=True)
class _Written:
    request: Request
    text: str


def _first_written(view: CellView, prompt_id: str) -> _Written | None:
    for request in view.ok:
        events = view.events.get(str(request.where.request_id))
        if request.prompt_id == prompt_id and events is not None and events.text is not None:
            return _Written(request=request, text=events.text)
    return None


def _output(view: CellView, own: _Written, reference: _Written | None) -> Output:
    if reference is None:
        remark = "the reference" if view.reference is None else "the reference wrote nothing"
        return Output(variant=view.cell.variant, same=own.text, different="", remark=remark)
    same, different = from_first_difference(own.text, reference.text)
    remark = "identical to the reference"
    if own.text != reference.text:
        remark = f"differs from the reference after {fmt.counted(len(same), 'character')}"
        remark += _worth(view, Pair(own=own.request, reference=reference.request))
    return Output(variant=view.cell.variant, same=same, different=different, remark=remark)


def _worth(view: CellView, pair: Pair) -> str:
    """What the difference is, where outputs are compared at all."""
    if not is_compared(view.cell):
        return ""
    found = judged(view, pair)
    if found.gap_nats is None:
        return f"; a near-tie or not: unknown, {found.reason}"
    bound, nats = "at least " if found.is_bound else "", fmt.number(found.gap_nats, 2)
    said = "by a near-tie" if found.word == "near-tie" else "for real"
    how = f"{bound}{nats} nats less likely than" if found.gap_nats else "as likely as"
    return f", {said}: its token is {how} the target's"
