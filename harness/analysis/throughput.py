"""Rates and latencies of a cell, from the client's clock alone.

A failed request gives no rate and no latency; its time still lies in the window that throughput is
taken over, and `failed_share` says how many there were. Engines' own timings are not looked at
here.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from math import fsum
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import measures
from harness.analysis import stats
from harness.analysis.measured import Measured, not_measured
from harness.analysis.stats import Groups
from harness.cell_view import CellView, OutputEvents
from harness.records import MachineSample, RepetitionEnd
from harness.requests import Column, Rows

NS_PER_S = 1e9


def _remembered(groups: Callable[[CellView], Groups]) -> Callable[[CellView], Groups]:
    """The figure, its boots and its interval all ask a view for the same groups."""

    @wraps(groups)
    def once(view: CellView) -> Groups:
        return view.remembered(groups.__name__, lambda: groups(view))

    return once


# --- per request, then mean of per-prompt medians -------------------------------------------------


@_remembered
def decode_rate_groups(view: CellView) -> Groups:
    return _by_prompt(view, _in_its_time(view, view.ok.column("decode_rate")))


@_remembered
def decode_rate_strict_groups(view: CellView) -> Groups:
    return _by_prompt(view, _in_its_time(view, view.ok.column("decode_rate_strict")))


@_remembered
def tpot_groups(view: CellView) -> Groups:
    return _by_prompt(view, _in_its_time(view, view.ok.column("tpot")))


@_remembered
def step_time_groups(view: CellView) -> Groups:
    """The median step of each request."""

    def figure(events: OutputEvents, n: int | None) -> float | None:
        steps = measures.step_times(_seconds(events))
        return median(steps) if steps else None

    return _by_prompt(view, _in_its_time(view, _of_events(view, figure)))


@_remembered
def peak_rate_groups(view: CellView) -> Groups:
    """Where an engine tells only a total, it is shared out evenly over the events.

    None at all where a stream is too short to have a peak: what is left would be the slow ones.
    """

    def figure(events: OutputEvents, n: int | None) -> float | None:
        if n is None or not events.tokens:
            return None
        known = [count for count in events.tokens if count is not None]
        whole = len(known) == len(events.tokens)
        counts = known if whole else [n / len(events.tokens)] * len(events.tokens)
        return measures.peak_rate(_seconds(events), counts)

    peaks = _of_events(view, figure)
    known = peaks.known & ~_impossible(view)
    return _by_prompt(view, Column(values=peaks.values, known=known)) if known.all() else ((),)


@_remembered
def prefill_rate_groups(view: CellView) -> Groups:
    if view.cell.max_tokens != 1:
        return ((),)
    return _by_prompt(view, view.ok.column("prefill_rate"))


def decode_rate_excess(view: CellView) -> Measured:
    headline = stats.mean_of_medians(decode_rate_groups(view))
    strict = stats.mean_of_medians(decode_rate_strict_groups(view))
    value = measures.excess(headline, strict)
    if value is None:
        return not_measured(why_no_rate(view))
    return Measured(value=value, n=len(view.ok))


def prefill_rate_pooled(view: CellView) -> Measured:
    """All computed prompt tokens over all seconds, so that a long prompt counts for as much as it
    is.
    """
    if view.cell.max_tokens != 1:
        return not_measured(why_no_prefill(view))
    rates, ttfts = view.ok.column("prefill_rate"), view.ok.column("ttft_s")
    known = rates.known & ttfts.known
    if not known.any():
        return not_measured(why_no_prefill(view))
    tokens, seconds = (ttfts.values * rates.values)[known], ttfts.values[known]
    return Measured(value=fsum(tokens.tolist()) / fsum(seconds.tolist()), n=len(seconds))


def _in_its_time(view: CellView, figures: Column) -> Column:
    """Of the streams alone that came in their own time: what a proxy collected and let go at once
    has no time per token, however long it took.
    """
    known = figures.known & ~view.ok.flagged("buffered_stream") & ~_impossible(view)
    return Column(values=figures.values, known=known)


def _impossible(view: CellView) -> NDArray[np.bool_]:
    """Which streams are faster than the matrix believes any to be."""
    rates, ceiling = view.ok.column("decode_rate"), view.cell.rate_ceiling_tok_per_s
    return rates.known & (rates.values > (np.inf if ceiling is None else ceiling))


def _above_ceiling(view: CellView, rate: float, streams: int) -> bool:
    ceiling = view.cell.rate_ceiling_tok_per_s
    return ceiling is not None and rate > ceiling * streams


def _of_events(
    view: CellView, figure: Callable[[OutputEvents, int | None], float | None]
) -> Column:
    """Of a request's events and its tokens; unknown where the events are not stored. Made once for
    the whole cell, of which this view may be a part.
    """
    ids = view.ok.ids() if view.events else []
    if not ids:
        nothing = np.zeros(len(view.ok))
        return Column(values=nothing, known=nothing.astype(bool))
    whole = view.root
    of_each = whole.remembered(figure.__qualname__, lambda: _of_each(whole, figure))
    found = [of_each[request_id] for request_id in ids]
    return Column(
        values=np.array([0.0 if value is None else value for value in found]),
        known=np.array([value is not None for value in found]),
    )


def _of_each(
    view: CellView, figure: Callable[[OutputEvents, int | None], float | None]
) -> dict[str, float | None]:
    pairs = zip(view.ok.ids(), view.ok.values("output_tokens"), strict=True)
    return {
        request_id: figure(view.events[request_id], n) if request_id in view.events else None
        for request_id, n in pairs
    }


def _seconds(events: OutputEvents) -> list[float]:
    """When each output came, after `t0`."""
    return [offset_ns / NS_PER_S for offset_ns in events.offsets_ns]


def _by_prompt(view: CellView, figures: Column) -> Groups:
    """A group per prompt that was asked; an empty one where no reply of it can tell."""
    groups = view.ok.by("prompt_id", figures.values, figures.known)
    return tuple(groups.get(prompt_id, ()) for prompt_id in view.sent.labels("prompt_id"))


def why_no_rate(view: CellView) -> str:
    """Why the mean over prompts of medians is not there."""
    asked, answered = view.sent.labels("prompt_id"), view.ok.labels("prompt_id")
    silent = sorted(map(str, {*asked} - {*answered}))
    if silent:
        return f"no request of {silent[0]} succeeded"
    if view.ok.lacks("output_tokens"):
        return "the engine reports no token count"
    if view.ok.flagged("buffered_stream").any():
        return "the stream was held back and came at once"
    if _impossible(view).any():
        return _above_what(view)
    return "a reply came in one read"


def why_no_aggregate(view: CellView) -> str:
    rates = [_aggregate(view, end) for end in view.ends]
    known = [rate for rate in rates if rate is not None]
    if any(_above_ceiling(view, rate, view.cell.concurrency) for rate in known):
        return _above_what(view)
    return why_no_rate(view)


def _above_what(view: CellView) -> str:
    return f"impossible: a stream above {view.cell.rate_ceiling_tok_per_s:g} tok/s"


def why_no_step(view: CellView) -> str:
    if not view.events:
        return "the events are not stored"
    if _impossible(view).any():
        return _above_what(view)
    return "a reply came in one burst"


def why_no_peak(view: CellView) -> str:
    if view.ok.lacks("output_tokens"):
        return "the engine reports no token count"
    if _impossible(view).any():
        return _above_what(view)
    return "a stream lasted less than a second" if view.events else "the events are not stored"


def why_no_prefill(view: CellView) -> str:
    if view.cell.max_tokens != 1:
        return "measured where max_tokens is 1"
    if view.ok.lacks("prompt_tokens"):
        return "the engine reports no prompt tokens"
    return "the whole prompt came from the prefix cache"


# --- latency --------------------------------------------------------------------------------------


def percentile_of(field: str, share: float) -> Callable[[CellView], Measured]:
    """Of one time of every successful request; None where the sample is too small to know."""

    def figure(view: CellView) -> Measured:
        return _percentile(view.ok.known(field), share, "requests")

    return figure


def ttft_from_schedule_percentile(share: float) -> Callable[[CellView], Measured]:
    """The wait before the send counts too: for a place, for Retry-After, for this client."""

    def figure(view: CellView) -> Measured:
        lateness, ttfts = view.ok.column("send_lateness_s"), view.ok.column("ttft_s")
        times = (lateness.values + ttfts.values)[ttfts.known]
        return _percentile(times, share, "requests")

    return figure


def token_time_percentile(share: float) -> Callable[[CellView], Measured]:
    """Over all tokens behind the first burst of every successful request."""

    def figure(view: CellView) -> Measured:
        if len(view.ok) and not view.events:
            return not_measured("the events are not stored")
        times: list[float] = []
        everything = np.ones(len(view.ok))
        in_its_time = _in_its_time(view, Column(values=everything, known=everything.astype(bool)))
        for request_id, counts in zip(view.ok.ids(), in_its_time.known.tolist(), strict=True):
            events = view.events.get(request_id)
            if events is None:
                return not_measured("the events are not stored")
            own = measures.token_times(_seconds(events), events.tokens)
            if own is None:
                return not_measured("the tokens of single events are not known")
            times += own if counts else ()
        return _percentile(np.array(times), share, "tokens")

    return figure


def _percentile(values: NDArray[Any], share: float, of_what: str) -> Measured:
    value = stats.percentile(values, share)
    if value is None:
        needed = stats.smallest_sample(share)
        return not_measured(f"needs {needed} {of_what}, has {len(values)}")
    return Measured(value=value, n=len(values))


def longest(field: str, none: str) -> Callable[[CellView], Measured]:
    """The longest of one time over all requests, the failed ones too; `none` says why there is
    none.
    """

    def figure(view: CellView) -> Measured:
        known = view.sent.known(field)
        if not len(known):
            return not_measured(none)
        return Measured(value=float(known.max()), n=len(known))

    return figure


# --- aggregate ------------------------------------------------------------------------------------


@_remembered
def aggregate_throughput_groups(view: CellView) -> Groups:
    """One group: tokens over the window from first send to last end, per wave or repetition."""
    rates = [_aggregate(view, end) for end in view.ends]
    known = tuple(rate for rate in rates if rate is not None)
    void = any(_above_ceiling(view, rate, view.cell.concurrency) for rate in known)
    return ((),) if void or len(known) != len(rates) else (known,)


def _aggregate(view: CellView, end: RepetitionEnd) -> float | None:
    asked = view.asked_in(replace(end.where, request_id=None))
    if not asked.num_ok or asked.tokens is None or end.window_s <= 0:
        return None
    return asked.tokens / end.window_s


@_remembered
def aggregate_steady_groups(view: CellView) -> Groups:
    """One group: tokens over the part of each repetition in which c requests were in flight."""
    if not view.events:
        return ((),)
    rates = [_steady(view, rows) for rows in _repetitions(view)]
    return (tuple(rate for rate in rates if rate is not None),) if None not in rates else ((),)


def _steady(view: CellView, rows: Rows) -> float | None:
    walls, starts_ns = view.sent.column("wall_s"), view.sent.column("t0_ns").values[rows]
    if not walls.known[rows].all() or not view.sent.has("status", "ok")[rows].all():
        return None
    window = steady_window_ns(starts_ns, walls.values[rows], view.cell.concurrency)
    if window is None:
        return None
    begin_ns, end_ns = window
    ids, tokens = view.sent.ids(), 0
    for row, t0_ns in zip(rows.tolist(), starts_ns.tolist(), strict=True):
        events = view.events.get(ids[row])
        inside = _tokens_between(events, begin_ns - t0_ns, end_ns - t0_ns)
        if inside is None:
            return None
        tokens += inside
    return tokens / ((end_ns - begin_ns) / NS_PER_S)


def steady_window_ns(
    starts_ns: NDArray[np.int64], walls_s: NDArray[np.float64], concurrency: int
) -> tuple[int, int] | None:
    """From the c-th start until the first end that no new request replaces."""
    if len(starts_ns) < concurrency:
        return None
    starts = np.sort(starts_ns)
    ends = np.sort(starts_ns + np.rint(walls_s * NS_PER_S).astype(np.int64))
    # of N ends the first N - c are each followed by a new start
    begin_ns, end_ns = int(starts[concurrency - 1]), int(ends[len(ends) - concurrency])
    return (begin_ns, end_ns) if end_ns > begin_ns else None


def _tokens_between(events: OutputEvents | None, begin_ns: int, end_ns: int) -> int | None:
    if events is None or None in events.tokens:
        return None
    pairs = zip(events.offsets_ns, events.tokens, strict=True)
    return sum(tokens or 0 for at_ns, tokens in pairs if begin_ns < at_ns <= end_ns)


def occupancy(view: CellView) -> Measured:
    """Busy stream-seconds over those the windows offered: sum of walls / (c x windows)."""
    window_s = sum(end.window_s for end in view.ends)
    if view.sent.lacks("wall_s") or window_s <= 0:
        return not_measured("a failed request has no duration")
    walls_s = sum(view.sent.known("wall_s").tolist())
    return Measured(value=walls_s / (view.cell.concurrency * window_s), n=len(view.ends))


def _repetitions(view: CellView) -> Iterator[Rows]:
    """The rows of each repetition's requests."""
    places, numbers = view.sent.places()
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(len(places) + 1))
    rows = dict(zip(places, np.split(order, starts[1:-1]), strict=True)) if places else {}
    for end in view.ends:
        yield rows.get(replace(end.where, request_id=None), order[:0])


def energy_per_token(view: CellView) -> Measured:
    """Of the accelerators alone, from their power in the seconds that belong to the cell."""
    powers = [_power_w(sample) for sample in view.machine]
    known = [power for power in powers if power is not None]
    tokens = int(view.ok.known("output_tokens").sum())
    if not known:
        return not_measured("no accelerator told its power")
    if not tokens or view.ok.lacks("output_tokens"):
        return not_measured("the engine reports no token count")
    seconds = fsum(end.window_s for end in view.ends)
    return Measured(value=fmean(known) * seconds / tokens, n=len(known))


def _power_w(sample: MachineSample) -> float | None:
    """Of all accelerators; None as soon as one does not tell."""
    powers = [each.power_w for each in sample.accelerators]
    known = [power for power in powers if power is not None]
    return fsum(known) if known and len(known) == len(powers) else None


def failed_share(view: CellView) -> Measured:
    num_failed = len(view.sent) - len(view.ok)
    return Measured(value=num_failed / len(view.sent), n=len(view.sent))
