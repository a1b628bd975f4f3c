"""A cell's page: what it is, what the checks say, every figure, and the requests they come from."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.measures import decode_rate
from harness.publish.html import render
from harness.records import Estimate, Request
from harness.report import format as fmt
from harness.report.tables import Entry, Table, figure, label
from harness.report.tables.figures import kind_label
from harness.report.tables.table import count, shown


@dataclass(frozen=True, kw_only=True)
class Text:
    """An output, told once however many requests had it."""

    number: int
    prompt_id: str
    num_requests: int
    text: str


Texts: TypeAlias = Mapping[tuple[str, str], Text]
"""By prompt and text."""


def cell_page(summary: Summary, view: CellView) -> bytes:
    texts = _texts(summary, view)
    return render(
        "cell.html.j2",
        {
            "run_id": summary.manifest.run_id,
            "variant": view.cell.variant,
            "facts": _facts(view),
            "verdicts": summary.verdicts_of(view),
            "unfinished": view.unfinished,
            "figures": _figures(summary, view),
            "requests": _requests(view),
            "request_links": [_link(view, request, texts) for request in view.requests],
            "failures": [
                (_short_id(request), request.error) for request in view.requests if request.error
            ],
            "texts": list(texts.values()),
        },
    )


def is_withheld(summary: Summary, view: CellView, prompt_id: str) -> bool:
    """Whether the prompt set says that this prompt and its answers are not to be published."""
    return prompt_id in summary.manifest.unpublished.get(view.cell.prompt_set, ())


def _facts(view: CellView) -> list[tuple[str, str]]:
    cell = view.cell
    drafter = "none"
    if cell.drafter is not None:
        drafter = f"{cell.drafter} {cell.drafter_model or ''}".strip()
        drafter += f", k = {cell.k}" if cell.k is not None else ""
    return [
        ("cell", cell.cell_id),
        ("engine", f"{cell.engine}, spoken to as {cell.adapter}"),
        ("target", cell.target),
        ("drafter", drafter),
        ("workload", f"{cell.workload}, {cell.load}, c = {cell.concurrency}"),
        ("prompts", f"{cell.prompt_set}, {cell.assignment}"),
        ("length", f"{cell.length}, at most {cell.max_tokens} tokens"),
        ("sampling", f"temperature {cell.sampling.temperature:g}"),
        ("workload key", cell.workload_key),
        ("subject key", cell.subject_key),
        ("protocol id", cell.protocol_id),
    ]


# --- figures --------------------------------------------------------------------------------------


def _figures(summary: Summary, view: CellView) -> Table:
    rows = [row for row in summary.rows if row.cell_id == view.cell.cell_id]
    return Table(
        name="figures",
        title="Every figure of this cell, named as in docs/figures.md",
        columns=("figure", "kind", "value", "95 % interval", "unit", "n", "interval from"),
        rows=tuple(
            (
                label(row.metric),
                kind_label(row.kind),
                figure(row.estimate.value, fmt.number, row.estimate.reason),
                _interval(row.estimate),
                label(row.estimate.unit),
                count(row.estimate.n),
                label(row.estimate.method or fmt.DASH),
            )
            for row in rows
        ),
        num_labels=2,
    )


def _interval(estimate: Estimate) -> Entry:
    if estimate.low is None or estimate.high is None:
        return label(fmt.DASH)
    return Entry(text=fmt.span(estimate.low, estimate.high), value=estimate.low)


# --- requests -------------------------------------------------------------------------------------


def _requests(view: CellView) -> Table:
    return Table(
        name="requests",
        title="Raw requests, as they were sent",
        columns=(
            "request",
            "prompt",
            "kind",
            "status",
            "prompt tokens",
            "output tokens",
            "TTFT, ms",
            "wall, ms",
            "tok/s",
            "finish reason",
            "flags",
        ),
        rows=tuple(_entries(request) for request in view.requests),
        num_labels=4,
    )


def _entries(request: Request) -> tuple[Entry, ...]:
    """Why a request lacks a figure stands in its status and flags."""
    return (
        label(_short_id(request)),
        label(request.prompt_id),
        label(request.kind),
        label(f"failed: {request.error.kind}" if request.error else request.status),
        shown(request.prompt_tokens, fmt.tokens),
        shown(request.output_tokens, fmt.tokens),
        shown(request.ttft_s, fmt.milliseconds),
        shown(request.wall_s, fmt.milliseconds),
        shown(_rate(request), fmt.rate),
        label(request.finish_reason or fmt.DASH),
        label(", ".join(request.flags) or fmt.DASH),
    )


def _rate(request: Request) -> float | None:
    return decode_rate(
        request.output_tokens,
        request.first_tokens,
        request.ttft_s,
        request.t_last_s,
        request.wall_s,
    )


def _short_id(request: Request) -> str:
    """The request's id without the cell's, which is the page's."""
    where = request.where
    return f"{where.boot_id}.{where.repetition}.{request.index}"


# --- outputs --------------------------------------------------------------------------------------


def _texts(summary: Summary, view: CellView) -> Texts:
    """In the order in which they came; none to a prompt that is not published."""
    counts: Counter[tuple[str, str]] = Counter()
    for request in view.requests:
        text = _text(view, request)
        if text is not None and not is_withheld(summary, view, request.prompt_id):
            counts[request.prompt_id, text] += 1
    return {
        place: Text(number=number, prompt_id=place[0], num_requests=times, text=place[1])
        for number, (place, times) in enumerate(counts.items(), start=1)
    }


def _text(view: CellView, request: Request) -> str | None:
    events = view.events.get(str(request.where.request_id))
    return None if events is None else events.text


def _link(view: CellView, request: Request, texts: Texts) -> str | None:
    found = texts.get((request.prompt_id, _text(view, request) or ""))
    return None if found is None else f"#output-{found.number}"
