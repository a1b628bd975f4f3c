"""Rates and latencies of a cell, from the client's clock alone.

A failed request gives no rate and no latency; its time still lies in the window that throughput is
taken over, and `failed_share` says how many there were. Engines' own timings are not looked at
here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness import measures
from harness.analysis import stats
from harness.analysis.measured import Measured, not_measured
from harness.analysis.stats import Groups
from harness.cell_view import CellView, OutputEvents
from harness.records import RepetitionEnd, Request

NS_PER_S = 1e9


# --- per request, then mean of per-prompt medians -------------------------------------------------


def decode_rate_groups(view: CellView) -> Groups:
    return _by_prompt(
        view,
        lambda request: measures.decode_rate(request.output_tokens, request.wall_s, request.ttft_s),
    )


def decode_rate_strict_groups(view: CellView) -> Groups:
    return _by_prompt(
        view,
        lambda request: measures.decode_rate_strict(
            request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s
        ),
    )


def tpot_groups(view: CellView) -> Groups:
    return _by_prompt(
        view,
        lambda request: measures.tpot(
            request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s
        ),
    )


def _by_prompt(view: CellView, figure: Callable[[Request], float | None]) -> Groups:
    """A group per prompt that was asked; an empty one where no reply of it can tell."""
    asked = dict.fromkeys(request.prompt_id for request in view.requests)
    values: dict[str, list[float]] = {prompt_id: [] for prompt_id in asked}
    for request in view.ok:
        value = figure(request)
        if value is not None:
            values[request.prompt_id].append(value)
    return tuple(tuple(group) for group in values.values())


def why_no_rate(view: CellView) -> str:
    """Why the mean over prompts of medians is not there."""
    asked = {request.prompt_id for request in view.requests}
    answered = {request.prompt_id for request in view.ok}
    silent = sorted(asked - answered)
    if silent:
        return f"no request of {silent[0]} succeeded"
    if any(request.output_tokens is None for request in view.ok):
        return "the engine reports no token count"
    return "a reply came in one read"


# --- latency --------------------------------------------------------------------------------------


def ttft_percentile(share: float) -> Callable[[CellView], Measured]:
    """Of all successful requests; None where the sample is too small to know."""

    def figure(view: CellView) -> Measured:
        values = [request.ttft_s for request in view.ok if request.ttft_s is not None]
        value = stats.percentile(values, share)
        if value is None:
            needed = stats.smallest_sample(share)
            return not_measured(f"needs {needed} requests, has {len(values)}")
        return Measured(value=value, n=len(values))

    return figure


# --- aggregate ------------------------------------------------------------------------------------


def aggregate_throughput_groups(view: CellView) -> Groups:
    """One group: tokens over the window from first send to last end, per wave or repetition."""
    rates = [_aggregate(end, requests) for end, requests in _repetitions(view)]
    return (tuple(rate for rate in rates if rate is not None),) if None not in rates else ((),)


def _aggregate(end: RepetitionEnd, requests: Sequence[Request]) -> float | None:
    lengths = [request.output_tokens for request in requests if request.status == "ok"]
    known = [length for length in lengths if length is not None]
    if not known or len(known) != len(lengths) or end.window_s <= 0:
        return None
    return sum(known) / end.window_s


def aggregate_steady_groups(view: CellView) -> Groups:
    """One group: tokens over the part of each repetition in which c requests were in flight."""
    rates = [_steady(view, requests) for _, requests in _repetitions(view)]
    return (tuple(rate for rate in rates if rate is not None),) if None not in rates else ((),)


def _steady(view: CellView, requests: Sequence[Request]) -> float | None:
    window = steady_window_ns(requests, view.cell.concurrency)
    if window is None or any(request.status != "ok" for request in requests):
        return None
    begin_ns, end_ns = window
    tokens = 0
    for request in requests:
        events = view.events.get(str(request.where.request_id))
        inside = _tokens_between(events, begin_ns - request.t0_ns, end_ns - request.t0_ns)
        if inside is None:
            return None
        tokens += inside
    return tokens / ((end_ns - begin_ns) / NS_PER_S)


def steady_window_ns(requests: Sequence[Request], concurrency: int) -> tuple[int, int] | None:
    """From the c-th start until the first end that no new request replaces."""
    if len(requests) < concurrency or any(request.wall_s is None for request in requests):
        return None
    starts = sorted(request.t0_ns for request in requests)
    ends = sorted(
        request.t0_ns + round(request.wall_s * NS_PER_S)
        for request in requests
        if request.wall_s is not None
    )
    # of N ends the first N - c are each followed by a new start
    begin_ns, end_ns = starts[concurrency - 1], ends[len(requests) - concurrency]
    return (begin_ns, end_ns) if end_ns > begin_ns else None


def _tokens_between(events: OutputEvents | None, begin_ns: int, end_ns: int) -> int | None:
    if events is None or None in events.tokens:
        return None
    pairs = zip(events.offsets_ns, events.tokens, strict=True)
    return sum(tokens or 0 for at_ns, tokens in pairs if begin_ns < at_ns <= end_ns)


def occupancy(view: CellView) -> Measured:
    """Busy stream-seconds over those the windows offered: sum of walls / (c x windows)."""
    walls = [request.wall_s for request in view.requests]
    known = [wall_s for wall_s in walls if wall_s is not None]
    window_s = sum(end.window_s for end in view.ends)
    if len(known) != len(walls) or window_s <= 0:
        return not_measured("a failed request has no duration")
    return Measured(value=sum(known) / (view.cell.concurrency * window_s), n=len(view.ends))


def _repetitions(view: CellView) -> Iterator[tuple[RepetitionEnd, Sequence[Request]]]:
    requests: dict[object, list[Request]] = defaultdict(list)
    for request in view.requests:
        requests[replace(request.where, request_id=None)].append(request)
    for end in view.ends:
        yield end, requests[replace(end.where, request_id=None)]


def failed_share(view: CellView) -> Measured:
    num_failed = len(view.requests) - len(view.ok)
    return Measured(value=num_failed / len(view.requests), n=len(view.requests))
