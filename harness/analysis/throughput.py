"""Rates and latencies of a cell, from the client's clock alone.

A failed request gives no rate and no latency; its time still lies in the window that throughput is
taken over, and `failed_share` says how many there were. Engines' own timings are not looked at
here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import fsum
from statistics import fmean, median

from harness import measures
from harness.analysis import stats
from harness.analysis.measured import Measured, not_measured
from harness.analysis.stats import Groups
from harness.cell_view import CellView, OutputEvents
from harness.records import MachineSample, RepetitionEnd, Request

NS_PER_S = 1e9


# --- per request, then mean of per-prompt medians -------------------------------------------------


def decode_rate_groups(view: CellView) -> Groups:
    return _by_prompt(view, _timed(view, _decode_rate))


def decode_rate_strict_groups(view: CellView) -> Groups:
    return _by_prompt(view, _timed(view, _decode_rate_strict))


def tpot_groups(view: CellView) -> Groups:
    return _by_prompt(view, _timed(view, _tpot))


def step_time_groups(view: CellView) -> Groups:
    """The median step of each request."""

    def figure(request: Request) -> float | None:
        steps = measures.step_times(_seconds(view, request))
        return median(steps) if steps else None

    return _by_prompt(view, _timed(view, figure))


def peak_rate_groups(view: CellView) -> Groups:
    """Where an engine tells only a total, it is shared out evenly over the events.

    None at all where a stream is too short to have a peak: what is left would be the slow ones.
    """

    def figure(request: Request) -> float | None:
        events = view.events.get(str(request.where.request_id))
        n = request.output_tokens
        if events is None or n is None or not events.tokens or _is_impossible(view, request):
            return None
        known = [count for count in events.tokens if count is not None]
        whole = len(known) == len(events.tokens)
        counts = known if whole else [n / len(events.tokens)] * len(events.tokens)
        return measures.peak_rate(_seconds(view, request), counts)

    if any(figure(request) is None for request in view.ok):
        return ((),)
    return _by_prompt(view, figure)


def prefill_rate_groups(view: CellView) -> Groups:
    if view.cell.max_tokens != 1:
        return ((),)
    return _by_prompt(view, _prefill_rate)


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
    known = [
        (request.ttft_s * rate, request.ttft_s)
        for request in view.ok
        if request.ttft_s is not None and (rate := _prefill_rate(request)) is not None
    ]
    if not known:
        return not_measured(why_no_prefill(view))
    tokens, seconds = (fsum(column) for column in zip(*known, strict=True))
    return Measured(value=tokens / seconds, n=len(known))


def _prefill_rate(request: Request) -> float | None:
    return measures.prefill_rate(request.prompt_tokens, request.cached_tokens, request.ttft_s)


def _decode_rate(request: Request) -> float | None:
    return measures.decode_rate(
        request.output_tokens,
        request.first_tokens,
        request.ttft_s,
        request.t_last_s,
        request.wall_s,
    )


def _decode_rate_strict(request: Request) -> float | None:
    return measures.decode_rate_strict(
        request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s
    )


def _tpot(request: Request) -> float | None:
    return measures.tpot(
        request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s
    )


def _timed(
    view: CellView, figure: Callable[[Request], float | None]
) -> Callable[[Request], float | None]:
    """The same figure of streams alone that came in their own time."""
    return lambda request: figure(request) if _came_in_its_time(view, request) else None


def _came_in_its_time(view: CellView, request: Request) -> bool:
    return not _held_back(request) and not _is_impossible(view, request)


def _held_back(request: Request) -> bool:
    """What a proxy collected and let go at once has no time per token, however long it took."""
    return "buffered_stream" in request.flags


def _is_impossible(view: CellView, request: Request) -> bool:
    """Whether a stream is faster than the matrix believes any to be."""
    rate = _decode_rate(request)
    return rate is not None and _above_ceiling(view, rate)


def _above_ceiling(view: CellView, rate: float, streams: int = 1) -> bool:
    ceiling = view.cell.rate_ceiling_tok_per_s
    return ceiling is not None and rate > ceiling * streams


def _seconds(view: CellView, request: Request) -> list[float]:
    """When each output came, after `t0`; empty where the events are not stored."""
    events = view.events.get(str(request.where.request_id))
    return [offset_ns / NS_PER_S for offset_ns in events.offsets_ns] if events else []


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
    if any(_held_back(request) for request in view.ok):
        return "the stream was held back and came at once"
    if any(_is_impossible(view, request) for request in view.ok):
        return _above_what(view)
    return "a reply came in one read"


def why_no_aggregate(view: CellView) -> str:
    rates = [_aggregate(end, requests) for end, requests in _repetitions(view)]
    known = [rate for rate in rates if rate is not None]
    if any(_above_ceiling(view, rate, view.cell.concurrency) for rate in known):
        return _above_what(view)
    return why_no_rate(view)


def _above_what(view: CellView) -> str:
    return f"impossible: a stream above {view.cell.rate_ceiling_tok_per_s:g} tok/s"


def why_no_step(view: CellView) -> str:
    if not view.events:
        return "the events are not stored"
    if any(_is_impossible(view, request) for request in view.ok):
        return _above_what(view)
    return "a reply came in one burst"


def why_no_peak(view: CellView) -> str:
    if any(request.output_tokens is None for request in view.ok):
        return "the engine reports no token count"
    if any(_is_impossible(view, request) for request in view.ok):
        return _above_what(view)
    return "a stream lasted less than a second" if view.events else "the events are not stored"


def why_no_prefill(view: CellView) -> str:
    if view.cell.max_tokens != 1:
        return "measured where max_tokens is 1"
    if any(request.prompt_tokens is None for request in view.ok):
        return "the engine reports no prompt tokens"
    return "the whole prompt came from the prefix cache"


# --- latency --------------------------------------------------------------------------------------


def percentile_of(field: str, share: float) -> Callable[[CellView], Measured]:
    """Of one time of every successful request; None where the sample is too small to know."""

    def figure(view: CellView) -> Measured:
        times = [getattr(request, field) for request in view.ok]
        return _percentile([time_s for time_s in times if time_s is not None], share, "requests")

    return figure


def ttft_from_schedule_percentile(share: float) -> Callable[[CellView], Measured]:
    """The wait before the send counts too: for a place, for Retry-After, for this client."""

    def figure(view: CellView) -> Measured:
        times = [
            request.send_lateness_s + request.ttft_s
            for request in view.ok
            if request.ttft_s is not None
        ]
        return _percentile(times, share, "requests")

    return figure


def token_time_percentile(share: float) -> Callable[[CellView], Measured]:
    """Over all tokens behind the first burst of every successful request."""

    def figure(view: CellView) -> Measured:
        times: list[float] = []
        for request in view.ok:
            events = view.events.get(str(request.where.request_id))
            if events is None:
                return not_measured("the events are not stored")
            own = measures.token_times(_seconds(view, request), events.tokens)
            if own is None:
                return not_measured("the tokens of single events are not known")
            times += own if _came_in_its_time(view, request) else ()
        return _percentile(times, share, "tokens")

    return figure


def _percentile(values: Sequence[float], share: float, of_what: str) -> Measured:
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
        times = [getattr(request, field) for request in view.requests]
        known = [time_s for time_s in times if time_s is not None]
        return Measured(value=max(known), n=len(known)) if known else not_measured(none)

    return figure


# --- aggregate ------------------------------------------------------------------------------------


def aggregate_throughput_groups(view: CellView) -> Groups:
    """One group: tokens over the window from first send to last end, per wave or repetition."""
    rates = [_aggregate(end, requests) for end, requests in _repetitions(view)]
    known = tuple(rate for rate in rates if rate is not None)
    void = any(_above_ceiling(view, rate, view.cell.concurrency) for rate in known)
    return ((),) if void or len(known) != len(rates) else (known,)


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


def energy_per_token(view: CellView) -> Measured:
    """Of the accelerators alone, from their power in the seconds that belong to the cell."""
    powers = [_power_w(sample) for sample in view.machine]
    known = [power for power in powers if power is not None]
    lengths = [request.output_tokens for request in view.ok]
    tokens = sum(length for length in lengths if length is not None)
    if not known:
        return not_measured("no accelerator told its power")
    if not tokens or None in lengths:
        return not_measured("the engine reports no token count")
    seconds = fsum(end.window_s for end in view.ends)
    return Measured(value=fmean(known) * seconds / tokens, n=len(known))


def _power_w(sample: MachineSample) -> float | None:
    """Of all accelerators; None as soon as one does not tell."""
    powers = [each.power_w for each in sample.accelerators]
    known = [power for power in powers if power is not None]
    return fsum(known) if known and len(known) == len(powers) else None


def failed_share(view: CellView) -> Measured:
    num_failed = len(view.requests) - len(view.ok)
    return Measured(value=num_failed / len(view.requests), n=len(view.requests))
