"""What makes a cell trustworthy, questionable or void: a pure function per rule of docs/checks.md.

A check sees the recorded facts of one cell (`CellView`) and answers ok, warning or invalid with a
sentence that says what to do. It measures nothing and reads nothing; the same function may judge
during a run or in a report. What cannot be decided from the facts is ok: a check accuses only with
evidence, and a table shows the gap.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from harness import measures
from harness.cell_view import CellView, LedgerEntry
from harness.records import Counters, Level, Request, Session, Verdict

FAILED_SHARE_LIMIT = 0.05
LENGTH_TOLERANCE = 0.10
LOOPS_LIMIT = 0.10
LOOPS_VOID = 0.50
LOOPS_OF_A_KIND = 0.50
SHORT_OUTPUT_TOKENS = (
    64  # n / (n - 1) is 1.6 % there: the decode rate's first token begins to matter
)
VOID_OUTPUT_TOKENS = 16  # 6.7 %
LATENESS_LIMIT = 0.01
CLIENT_CPU_WARNING = 0.80
CLIENT_CPU_VOID = 0.95
LOOP_LAG_LIMIT_S = 0.05
SATURATED_FRACTION = 0.97
SHALLOW_FRACTION = 0.95  # a last round may be cut short by the token limit, no more
COLD_FACTOR = 1.5  # a first request this much slower than its repetitions paid for something else
SCATTER_LIMIT = 0.10
DRIFT_LIMIT = 0.05


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict before it has a name and a cell."""

    level: Level
    message: str = ""


OK = Finding(level="ok")
CheckFunction: TypeAlias = Callable[[CellView], Finding]


@dataclass(frozen=True, kw_only=True)
class Check:
    """`rule` is the line of docs/checks.md: what is asked, and from where on it is a warning or
    invalid.
    """

    rule: str
    judge: CheckFunction


def judge(view: CellView) -> tuple[Verdict, ...]:
    """Every check's word on a cell, in the table's order; without a request, the first one's."""
    checks = CHECKS if view.requests else {"available": CHECKS["available"]}
    return tuple(
        Verdict(check=name, level=found.level, message=found.message, cell_id=view.cell.cell_id)
        for name, check in checks.items()
        for found in (check.judge(view),)
    )


def worst(verdicts: Iterable[Verdict]) -> Level:
    levels = {verdict.level for verdict in verdicts}
    if "invalid" in levels:
        return "invalid"
    return "warning" if "warning" in levels else "ok"


def _warning(message: str) -> Finding:
    return Finding(level="warning", message=message)


def _invalid(message: str) -> Finding:
    return Finding(level="invalid", message=message)


def available(view: CellView) -> Finding:
    if not view.unfinished:
        return OK
    message = (
        f"{len(view.unfinished)} of its blocks did not finish the cell: {view.unfinished[0]} "
        "`dflashbench resume RUN` measures the rest."
    )
    return _warning(message) if view.requests else _invalid(message)


# --- requests -------------------------------------------------------------------------------------


def failed_share(view: CellView) -> Finding:
    num_failed = len(view.requests) - len(view.ok)
    if not num_failed:
        return OK
    kinds = Counter(request.error.kind for request in view.requests if request.error)
    causes = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    message = (
        f"{num_failed} of {len(view.requests)} requests failed ({causes}). Their times are in no "
        "figure; look in requests.jsonl and the server's log, then measure the cell again."
    )
    if num_failed / len(view.requests) > FAILED_SHARE_LIMIT:
        return _invalid(message)
    return _warning(message)


def lengths_equal(view: CellView) -> Finding:
    """Outputs as long as the reference's, prompt by prompt: else two different pieces of work are
    compared.
    """
    if view.reference is None:
        return OK
    if view.cell.sampling.temperature > 0 and view.cell.length != "forced":
        return _warning(
            f"At temperature {view.cell.sampling.temperature:g} with length natural every output "
            "has its own length, so this is no controlled comparison. Set `length: forced`."
        )
    ours, theirs = _median_lengths(view.ok), _median_lengths(view.reference.ok)
    differing = {
        prompt: (ours[prompt], theirs[prompt])
        for prompt in ours.keys() & theirs.keys()
        if ours[prompt] != theirs[prompt]
    }
    if not differing:
        return OK
    prompt, (own, other) = max(
        sorted(differing.items()), key=lambda item: _relative_difference(*item[1])
    )
    message = (
        f"Outputs differ in length from the reference's for {len(differing)} of {len(ours)} "
        f"prompts, most for {prompt!r}: {own:g} against {other:g} tokens. No controlled "
        "comparison: look at the first differing token under Losslessness, or set `length: "
        "forced`."
    )
    if _relative_difference(own, other) <= LENGTH_TOLERANCE:
        return _warning(message)
    return _invalid(message)


def short_outputs(view: CellView) -> Finding:
    lengths = _median_lengths(view.ok)
    if not lengths or view.cell.max_tokens == 1:  # asked for prefill alone: no decode rate is shown
        return OK
    prompt, shortest = min(lengths.items(), key=lambda item: item[1])
    if shortest >= SHORT_OUTPUT_TOKENS:
        return OK
    message = (
        f"The outputs of {prompt!r} have {shortest:g} tokens (median). decode_rate counts the "
        f"first token but not its time, {100 / max(shortest - 1, 1):.1f} % too much here. Take "
        "prompts with longer answers, a higher `max_tokens` or `length: forced`."
    )
    return _invalid(message) if shortest < VOID_OUTPUT_TOKENS else _warning(message)


def loops(view: CellView) -> Finding:
    known = [
        request.distinct_4gram_share
        for request in view.ok
        if request.distinct_4gram_share is not None
    ]
    looping = sum(bool(measures.loops(share)) for share in known)
    if not known:
        return OK
    kind, share = _kind_that_loops_most(view)
    if looping / len(known) <= LOOPS_LIMIT and share < LOOPS_OF_A_KIND:
        return OK
    message = (
        f"{looping} of {len(known)} outputs repeat themselves, {share * 100:.0f} % of kind {kind} "
        "(fewer than half of their 4-grams are distinct), which is easy to draft and inflates "
        "acceptance and speed-up. Take other prompts or a lower `max_tokens`."
    )
    return _invalid(message) if looping / len(known) > LOOPS_VOID else _warning(message)


def _kind_that_loops_most(view: CellView) -> tuple[str, float]:
    """And its share of looping outputs: in a table by kind it is a row of its own."""
    loops_of: dict[str, list[bool]] = defaultdict(list)
    for request in view.ok:
        looping = measures.loops(request.distinct_4gram_share)
        if looping is not None:
            loops_of[request.kind].append(looping)
    shares = {kind: sum(loops) / len(loops) for kind, loops in loops_of.items()}
    return max(shares.items(), key=lambda item: item[1])


def _flagged(flag: str, advice: str) -> CheckFunction:
    """A warning as soon as one request carries the flag."""

    def judge(view: CellView) -> Finding:
        guilty = [request for request in view.requests if flag in request.flags]
        if not guilty:
            return OK
        return _warning(f"{len(guilty)} of {len(view.requests)} requests: {advice}")

    return judge


buffered_stream = _flagged(
    "buffered_stream",
    "all of the output came at once, so something between the engine and here held the stream back "
    "and no rate can be read from it. Look for a proxy, a compressing middleware or a setting that "
    "streams in large intervals.",
)
unterminated_final_event = _flagged(
    "unterminated_final_event",
    "the stream ended inside its last event, which counts only where its JSON is whole. Where the "
    "token count is n/a, that event held it. Report it to the engine.",
)
possible_cap = _flagged(
    "possible_cap",
    "the finish reason is `stop` at exactly `max_tokens`, so the limit may have ended the output "
    "and not the model. Raise `max_tokens` by one to tell.",
)
over_cap = _flagged(
    "over_cap",
    "more than `max_tokens` tokens came, so another amount of work was measured than was asked "
    "for. Report it to the engine.",
)


after_failure = _flagged(
    "after_failure",
    "an earlier request was given up, and the engine may still have been working on it. Look why "
    "that one failed, then measure the cell again.",
)
reconnected = _flagged(
    "reconnected",
    "the server had closed the open connection, so the request was sent a second time on a new "
    "one. Its times count from then; many of them mean a server that closes connections early.",
)


def prompt_rendered_equal(view: CellView) -> Finding:
    if view.reference is None:
        return OK
    ours, theirs = _prompt_lengths(view.ok), _prompt_lengths(view.reference.ok)
    for prompt in sorted(ours.keys() & theirs.keys()):
        if ours[prompt] != theirs[prompt]:
            return _invalid(
                f"{prompt!r} was rendered to {_either(ours[prompt])} prompt tokens, to "
                f"{_either(theirs[prompt])} for the reference. Compare the two engines' chat "
                "templates and thinking flags."
            )
    return OK


def cache_state(view: CellView) -> Finding:
    cached = [request for request in view.ok if request.cached_tokens]
    if not cached:
        return OK
    return _warning(
        f"{len(cached)} of {len(view.ok)} prompts were partly in the engine's prefix cache, so "
        "TTFT is not a cold one. Switch prefix caching off, or read TTFT as warm."
    )


def _median_lengths(requests: Iterable[Request]) -> Mapping[str, float]:
    lengths: dict[str, list[int]] = defaultdict(list)
    for request in requests:
        if request.output_tokens is not None:
            lengths[request.prompt_id].append(request.output_tokens)
    return {prompt: median(values) for prompt, values in lengths.items()}


def _relative_difference(own: float, other: float) -> float:
    return abs(own - other) / max(other, 1.0)


def _prompt_lengths(requests: Iterable[Request]) -> Mapping[str, frozenset[int]]:
    lengths: dict[str, set[int]] = defaultdict(set)
    for request in requests:
        if request.prompt_tokens is not None:
            lengths[request.prompt_id].add(request.prompt_tokens)
    return {prompt: frozenset(values) for prompt, values in lengths.items()}


def _either(values: Iterable[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))


# --- the load -------------------------------------------------------------------------------------


def balanced_mix(view: CellView) -> Finding:
    """In every boot, every prompt of the set finished equally often."""
    for boot_id in view.boot_ids:
        finished = Counter(
            request.prompt_id for request in view.ok if request.where.boot_id == boot_id
        )
        counts = [finished[prompt] for prompt in view.prompt_ids]
        if len(set(counts)) > 1:
            return _warning(
                f"The prompts finished {min(counts)} to {max(counts)} times each, so this level "
                "serves another mix than the balanced ones and is not part of the comparable "
                "curve. Set `assignment: balanced`, or a level that the number of prompts "
                "divides."
            )
    return OK


def in_flight_is_c(view: CellView) -> Finding:
    wanted = view.cell.concurrency
    reached = {end.in_flight_max for end in view.ends}
    if view.cell.rate_per_s is not None:
        return _bound_of_arrivals(reached, wanted)
    if not reached or reached == {wanted}:
        return OK
    message = f"{_either(reached)} requests were in flight where the cell asks for {wanted}."
    if max(reached) > wanted:
        return _invalid(
            f"{message} This is a defect of the harness: please report it with the run."
        )
    return _warning(f"{message} Give the level at least {wanted} requests per repetition.")


def _bound_of_arrivals(reached: set[int], bound: int) -> Finding:
    if bound not in reached:
        return OK
    return _warning(
        f"{bound} requests were in flight, which is the most that the cell allows: arrivals waited "
        "for a place, and their lateness says how long. Raise the level, or lower `rate_per_s`."
    )


def warmed_up(view: CellView) -> Finding:
    warm = {request.where.boot_id for request in view.warmups if request.status == "ok"}
    cold = [boot_id for boot_id in view.boot_ids if boot_id not in warm]
    if not cold:
        return OK
    return _warning(
        f"No warm-up request succeeded in boot {', '.join(cold)}, so its first requests paid for "
        "compilation and caches. Name a `warmup` prompt set in the workload."
    )


def client_late(view: CellView) -> Finding:
    """1 % of what is measured: calibration against TTFT, sending against the wall time."""
    for request in view.ok:
        if request.wall_s and request.send_lateness_s > LATENESS_LIMIT * request.wall_s:
            return _warning(
                f"Request {request.where.request_id} left {request.send_lateness_s * 1e3:.1f} ms "
                "after its time, more than 1 % of what it measures. Free the client's cores, or "
                "lower the concurrency."
            )
    return _late_by_calibration(view) or _beyond_calibration(view) or OK


def _late_by_calibration(view: CellView) -> Finding | None:
    added = [lateness_s for s in view.sessions if (lateness_s := _added_s(view, s)) is not None]
    ttfts = [request.ttft_s for request in view.ok if request.ttft_s is not None]
    if not added or not ttfts or max(added) <= LATENESS_LIMIT * median(ttfts):
        return None
    return _warning(
        f"This client adds up to {max(added) * 1e3:.2f} ms (p99), more than 1 % of the median "
        f"TTFT of {median(ttfts) * 1e3:.1f} ms: read TTFT with that in mind. Free the "
        "client's cores and run `dflashbench doctor`."
    )


def _added_s(view: CellView, session: Session) -> float | None:
    """What the client adds at the cell's concurrency, or at the next above that was calibrated."""
    levels = session.calibration.lateness if session.calibration else ()
    at_least = [level for level in levels if level.concurrency >= view.cell.concurrency]
    if at_least:
        return min(at_least, key=lambda level: level.concurrency).added_ttft_p99_s
    return session.client_lateness_s


def _beyond_calibration(view: CellView) -> Finding | None:
    """More at once, or more events a second, than this client was seen to measure rightly."""
    for calibration in (session.calibration for session in view.sessions):
        if calibration is None:
            continue
        highest = max(level.concurrency for level in calibration.lateness)
        if view.cell.concurrency > highest:
            return _warning(
                f"This client was calibrated up to {highest} requests at once, not for "
                f"{view.cell.concurrency}: what it adds there is unknown."
            )
        rate, tried = _events_per_s(view), calibration.unclean_events_per_s
        limit = calibration.clean_events_per_s or (0 if tried else None)
        if rate is not None and limit is not None and rate > limit:
            return _warning(
                f"About {rate:.0f} events a second came in; up to {limit} this client's rates were "
                f"seen to be right within 1 %{f', at {tried} not' if tried else ''}. Free the "
                "client's cores, or let the engine send more tokens per event."
            )
    return None


def _events_per_s(view: CellView) -> float | None:
    """Of all streams together: the middle stream's rate, times the streams there were at once."""
    rates = [
        request.num_output_events / (request.t_last_s - request.ttft_s)
        for request in view.ok
        if request.ttft_s is not None
        and request.t_last_s is not None
        and request.t_last_s > request.ttft_s
    ]
    at_once = max((end.in_flight_max for end in view.ends), default=0)
    return at_once * median(rates) if rates else None


def client_busy(view: CellView) -> Finding:
    shares = [end.cpu_share for end in view.ends if end.cpu_share is not None]
    if shares and max(shares) > CLIENT_CPU_WARNING:
        message = (
            f"The client used {max(shares) * 100:.0f} % of a core, so it may have measured itself. "
            "Free its cores, or lower the concurrency."
        )
        return _invalid(message) if max(shares) > CLIENT_CPU_VOID else _warning(message)
    lags = [end.loop_lag_max_s for end in view.ends if end.loop_lag_max_s is not None]
    if lags and max(lags) > LOOP_LAG_LIMIT_S:
        return _warning(
            f"The client's event loop stood still for {max(lags) * 1e3:.0f} ms, and reads that "
            "came in meanwhile are stamped late. Keep other work off the client's cores."
        )
    return OK


# --- the engine's counters ------------------------------------------------------------------------


def counter_reset(view: CellView) -> Finding:
    for before, after in _readings(view):
        found = measures.counters_delta(before, after)
        if not isinstance(found, measures.NotMeasured):
            continue
        if found.reason == "restart":
            return _invalid(
                "The engine process was replaced between two readings of its counters. Look in "
                "its log for why it died, then measure the cell again."
            )
        if found.reason == "counter_reset":
            return _invalid(
                f"Between two readings of the engine's counters, {found.message}, so something "
                "reset them. Let nothing else touch the engine, then measure the cell again."
            )
    return OK


def counter_foreign_label(view: CellView) -> Finding:
    labels = {label for pair in _readings(view) for counters in pair for label in counters.labels}
    if len(labels) <= 1:
        return OK
    return _invalid(
        f"The counters belong to {len(labels)} models ({', '.join(sorted(labels))}). Measure an "
        "engine that serves the one model of this cell."
    )


def foreign_traffic(view: CellView) -> Finding:
    """The engine did no work that none of our requests asked for."""
    foreign = [entry for entry in view.ledger if entry.contaminated]
    if not foreign:
        return OK
    return _invalid(
        f"{len(foreign)} of {len(view.ledger)} readings of the engine's counters are "
        f"{foreign[0].reason}. Somebody else uses the engine: measure as its sole client."
    )


def positions_add_up(view: CellView) -> Finding:
    """Every accepted token was accepted at some position."""
    total = view.total.delta
    if total is None or total.accepted_at is None or total.accepted_tokens is None:
        return OK
    if sum(total.accepted_at) == total.accepted_tokens:
        return OK
    return _invalid(
        f"The engine counted {total.accepted_tokens} accepted tokens and {sum(total.accepted_at)} "
        "over its positions. Do not use its acceptance figures; report this to the engine."
    )


def speculation_active(view: CellView) -> Finding:
    total = view.total.delta
    drafts = total.drafts if total else None
    if view.cell.drafter is None:
        if not drafts:
            return OK
        return _invalid(
            f"{view.cell.engine} counted {drafts} drafts although this variant is plain. Start it "
            "without a drafter, or it is no reference."
        )
    if drafts is None:
        reason = view.total.reason or "the engine keeps no drafting counters"
        return _warning(
            f"Whether {view.cell.engine} used {view.cell.drafter} is unknown: {reason}. Compare "
            "its output times with the reference's."
        )
    if drafts == 0:
        return _invalid(
            f"{view.cell.engine} drafted nothing although the cell asks for {view.cell.drafter}. "
            "Look in the server's log for why the drafter was not loaded."
        )
    return OK


def al_within_k_plus_1(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    share = measures.acceptance_rate(total) if total else None
    if total and share is not None and share > 1:
        return _invalid(
            f"The engine counts {total.accepted_tokens} of {total.draft_tokens} drafted tokens as "
            "accepted, which cannot be. Do not use its acceptance figures; report this to the "
            "engine."
        )
    length = measures.acceptance_length(total) if total else None
    if length is None or k is None or length <= k + 1:
        return OK
    return _invalid(
        f"Acceptance length {length:.3f} with k = {k}, where {k + 1} is the most a round can "
        "emit. The engine drafts deeper than the matrix says: set `k` to what it uses."
    )


def drafted_depth(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    if total is None or k is None or not total.drafts or total.draft_tokens is None:
        return OK
    depth = total.draft_tokens / total.drafts
    message = f"The engine drafted {depth:.2f} tokens per round where the matrix says k = {k}."
    if depth > k:
        return _invalid(f"{message} Set `k` to what it uses, or start it with that depth.")
    if depth < SHALLOW_FRACTION * k:
        return _warning(
            f"{message} fraction_of_ceiling counts {k} + 1. Look for a confidence threshold or a "
            "token limit that ends drafts early."
        )
    return OK


def saturated(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    length = measures.acceptance_length(total) if total else None
    fraction = measures.fraction_of_ceiling(length, k)
    if fraction is None or not SATURATED_FRACTION <= fraction <= 1:
        return OK
    return _warning(
        f"The drafter reaches {fraction * 100:.1f} % of its ceiling of {k} + 1 tokens a round. No "
        "tuning remains; only a larger block would help."
    )


def token_identity(view: CellView) -> Finding:
    """tokens = requests + rounds + plain steps + accepted - trimmed, over every scope with its
    counters.
    """
    for entry in view.ledger:
        residual = _residual(view, entry)
        if residual is None or entry.delta is None or entry.where is None:
            continue
        # An engine that does not count what it cut off after the end may have accepted k tokens too
        # many.
        uncounted = entry.delta.trimmed_tokens is None and view.cell.drafter is not None
        slack = (view.cell.k or 0) * len(view.requests_in(entry.where)) if uncounted else 0
        if not -slack <= residual <= 0:
            return _invalid(
                f"The engine's counters do not add up: {residual:+d} tokens against requests + "
                "rounds + plain steps + accepted - trimmed. Do not use its acceptance figures; "
                "report this to the engine."
            )
    return OK


def _residual(view: CellView, entry: LedgerEntry) -> int | None:
    """None unless every request of the scope succeeded and the engine counts its plain steps."""
    if entry.delta is None or entry.where is None or entry.delta.plain_steps is None:
        return None
    requests = view.requests_in(entry.where)
    lengths = [request.output_tokens for request in requests if request.status == "ok"]
    tokens = sum(length for length in lengths if length is not None)
    if not requests or None in lengths or len(lengths) != len(requests):
        return None
    return measures.token_identity_residual(entry.delta, tokens, len(requests))


def _readings(view: CellView) -> Sequence[tuple[Counters, Counters]]:
    """Counters before and after, of every scope that has both."""
    before = {s.where: s.counters for s in view.snapshots if s.moment == "before"}
    after = {s.where: s.counters for s in view.snapshots if s.moment == "after"}
    pairs = [(before[where], after.get(where)) for where in before]
    return [(first, second) for first, second in pairs if first and second]


# --- the engine and its settings ------------------------------------------------------------------


def speculator_kind(view: CellView) -> Finding:
    asked = view.cell.drafter or "none"
    for boot in view.boots:
        named = (boot.health or {}).get("drafter")
        if isinstance(named, str) and named != asked:
            return _invalid(
                f"{view.cell.engine} says that it drafts with {named!r} where the cell asks for "
                f"{asked!r}. Look in the server's log for what it loaded."
            )
    return OK


def k_le_block(view: CellView) -> Finding:
    """A block is the drafted tokens and the one they follow."""
    for boot in view.boots:
        block = (boot.health or {}).get("block")
        if isinstance(block, int) and view.cell.k is not None and view.cell.k > block - 1 > 0:
            return _invalid(
                f"k = {view.cell.k}, but the drafter's block of {block} holds {block - 1} drafted "
                f"tokens. Write k: {block - 1} or less."
            )
    return OK


def synthetic_acceptance(view: CellView) -> Finding:
    for boot in view.boots:
        asked = " ".join([*boot.argv, *(f"{key} {value}" for key, value in boot.wanted.items())])
        found = _SYNTHETIC.search(asked)
        if found is not None:
            return _invalid(
                f"The engine was told how much to accept ({found.group()}): its output is no "
                "model's, its speed no drafter's. Remove the setting to measure one."
            )
    return OK


# llama.cpp b11434: --spec-synth-len, --spec-synth-rates; vLLM 0.32: in its speculative config
_SYNTHETIC = re.compile(
    r"spec[-_]synth[-_]\w+|synthetic_acceptance_\w+|rejection_sample_method\W+synthetic"
)


def flags_diff(view: CellView) -> Finding:
    """Numbers alone are held against each other: words have too many spellings."""
    for boot in view.boots:
        told = boot.health or {}
        for name, asked in boot.wanted.items():
            if _is_number(asked) and _is_number(told.get(name)) and told[name] != asked:
                return _invalid(
                    f"The matrix asks for {name} {asked}, the engine says {told[name]}. Start it "
                    "with what the matrix says, or write what it uses."
                )
    return OK


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def confounded(view: CellView) -> Finding:
    if view.reference is None:
        return OK
    ours, theirs = _settings(view), _settings(view.reference)
    moved = sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )
    if not moved:
        return OK
    return _warning(
        f"Beside the drafter, the reference differs in {', '.join(moved)}, so the speed-up is not "
        "the drafter's alone. Set it alike in both, or read the ratio as that of two set-ups."
    )


_OF_THE_MODELS = ("target", "drafter", "drafter_model", "k")


def _settings(view: CellView) -> Mapping[str, object]:
    """What the boots were asked for, models left out; environment variables among it."""
    asked: dict[str, object] = {}
    for boot in view.boots:
        asked |= {name: value for name, value in boot.wanted.items() if name not in _OF_THE_MODELS}
        asked |= boot.environment
    return asked


def unequal_depth(view: CellView) -> Finding:
    other = view.reference.cell.k if view.reference else None
    if other is None or view.cell.k is None or other == view.cell.k:
        return OK
    return _warning(
        f"k = {view.cell.k} is held against k = {other}: the ratio is of two drafters and of two "
        "depths. Measure both at each depth."
    )


def build_known(view: CellView) -> Finding:
    builds = {boot.build for boot in view.boots if boot.build is not None}
    if len(builds) > 1:
        return _invalid(
            f"The cell's boots ran {len(builds)} builds of the engine, so its figures are of no "
            "one engine. Measure it again with one build."
        )
    if all(boot.version is not None for boot in view.boots):
        return OK
    return _warning(
        "The engine does not say its version, so nobody can measure this again. Write it into the "
        "engine's name, or use an engine whose /health has `version`."
    )


def slots_ge_c(view: CellView) -> Finding:
    for boot in view.boots:
        slots = (boot.health or {}).get("max_concurrent_requests")
        if isinstance(slots, int) and slots < view.cell.concurrency:
            return _warning(
                f"The engine works on {slots} of the {view.cell.concurrency} requests at once, so "
                "TTFT is mostly queue and the aggregate that of fewer streams. Start it with more "
                "slots, or read the level as one of waiting."
            )
    return OK


def context_fits(view: CellView) -> Finding:
    cut = [
        request
        for request in view.ok
        if request.finish_reason == "length"
        and request.output_tokens is not None
        and request.output_tokens < view.cell.max_tokens
    ]
    if not cut:
        return OK
    return _warning(
        f"{len(cut)} of {len(view.ok)} outputs were cut off before `max_tokens` "
        f"({cut[0].output_tokens} of {view.cell.max_tokens} tokens for {cut[0].prompt_id!r}): the "
        "engine's context was full. Raise its context length, or lower `max_tokens`."
    )


def thinking_off(view: CellView) -> Finding:
    if view.cell.sampling.thinking is not False:
        return OK
    thought = [
        request
        for request in view.ok
        if request.ttft_s is not None
        and (request.ttfa_s is None or request.ttfa_s > request.ttft_s)
    ]
    if not thought:
        return OK
    return _warning(
        f"{len(thought)} of {len(view.ok)} outputs began with something else than the answer "
        "although thinking is off. Look whether the engine's chat template knows the switch."
    )


# --- steadiness -----------------------------------------------------------------------------------


def cold_in_measured(view: CellView) -> Finding:
    """The first request of a boot against the same prompt's later ones, one request at a time."""
    if view.cell.load != "single":
        return OK
    for boot_id in view.boot_ids:
        walls = _walls(view, boot_id)
        first = next(iter(walls.values()), [])
        if len(first) > 2 and first[0] > COLD_FACTOR * median(first[1:]):
            return _warning(
                f"The first request of boot {boot_id} took {first[0] / median(first[1:]):.1f} "
                "times as long as the same prompt later: something was loaded or compiled within "
                "what is measured. Give the workload a longer warm-up."
            )
    return OK


def scatter(view: CellView) -> Finding:
    """Per prompt and boot (longest - shortest) / median; of these the median."""
    if view.cell.load != "single" or view.cell.sampling.temperature > 0:
        return OK
    ranges = [
        (max(walls) - min(walls)) / median(walls)
        for boot_id in view.boot_ids
        for walls in _walls(view, boot_id).values()
        if len(walls) > 1
    ]
    if not ranges or median(ranges) <= SCATTER_LIMIT:
        return OK
    return _warning(
        f"Repetitions of one prompt lie {median(ranges) * 100:.0f} % apart within a boot (median "
        "over prompts): something else used the machine. Keep it quiet, or measure more "
        "repetitions."
    )


def drift(view: CellView) -> Finding:
    """The same work in the first boot and the last: with A/B/B/A a plain variant has the ends."""
    if view.cell.load != "single" or len(view.boot_ids) < 2:
        return OK
    first, last = (_walls(view, boot_id) for boot_id in (view.boot_ids[0], view.boot_ids[-1]))
    ratios = [median(last[prompt]) / median(first[prompt]) for prompt in first.keys() & last.keys()]
    if not ratios or abs(median(ratios) - 1) <= DRIFT_LIMIT:
        return OK
    change = median(ratios) - 1
    return _warning(
        f"A request took {abs(change) * 100:.1f} % {'longer' if change > 0 else 'less'} in the "
        "last boot than in the first (median over prompts), so the machine moved while it was "
        "measured. Let it cool down (`cooldown_s`), or measure more boots."
    )


def _walls(view: CellView, boot_id: str) -> Mapping[str, list[float]]:
    """Durations by prompt in one boot, in the order they were sent."""
    walls: dict[str, list[float]] = defaultdict(list)
    for request in view.ok:
        if request.where.boot_id == boot_id and request.wall_s is not None:
            walls[request.prompt_id].append(request.wall_s)
    return walls


# --- where the numbers come from ------------------------------------------------------------------


def within_one_boot(view: CellView) -> Finding:
    if len(view.boots) != 1:
        return OK
    return _warning(
        "Measured in one boot: its interval knows nothing of what changes from boot to boot, and "
        "decides nothing. Set `schedule: {boots: 4}`."
    )


def split_session(view: CellView) -> Finding:
    sessions = {boot.where.session_id for boot in view.boots}
    if view.reference is not None:
        sessions |= {boot.where.session_id for boot in view.reference.boots}
    if len(sessions) <= 1:
        return OK
    return _warning(
        f"This figure and its reference come from {len(sessions)} starts of the harness, so the "
        "machine may have changed in between. For a claim, measure both in one session."
    )


CHECKS: Mapping[str, Check] = {
    "available": Check(
        rule="Every block that was to measure the cell finished it. Warning when some did not, "
        "invalid when none did.",
        judge=available,
    ),
    "speculation_active": Check(
        rule="A variant with a drafter drafted, a plain one did not. Invalid; warning where the "
        "engine keeps no count.",
        judge=speculation_active,
    ),
    "al_within_k_plus_1": Check(
        rule="The acceptance length is at most k + 1, and no more is accepted than drafted. "
        "Invalid above.",
        judge=al_within_k_plus_1,
    ),
    "drafted_depth": Check(
        rule="A round drafts k tokens. Invalid above k; warning below 95 % of it.",
        judge=drafted_depth,
    ),
    "saturated": Check(
        rule="Warning from 97 % of the ceiling k + 1 on: only a larger block would help.",
        judge=saturated,
    ),
    "token_identity": Check(
        rule="tokens = requests + rounds + plain steps + accepted - trimmed. Invalid otherwise; "
        "an engine that does not count trimmed tokens may be short by k tokens per request.",
        judge=token_identity,
    ),
    "positions_add_up": Check(
        rule="Accepted tokens per position add up to the accepted tokens. Invalid otherwise.",
        judge=positions_add_up,
    ),
    "counter_reset": Check(
        rule="No counter falls and no process is replaced between two readings. Invalid.",
        judge=counter_reset,
    ),
    "counter_foreign_label": Check(
        rule="All counters carry one model's label. Invalid otherwise.",
        judge=counter_foreign_label,
    ),
    "foreign_traffic": Check(
        rule="The engine counted no more requests and tokens than ours. Invalid; a failed request "
        "may have had all of its tokens.",
        judge=foreign_traffic,
    ),
    "failed_share": Check(
        rule="No request failed. Warning up to 5 %, invalid above.",
        judge=failed_share,
    ),
    "lengths_equal": Check(
        rule="Each prompt's median output length equals the reference's. Warning within 10 %, "
        "invalid beyond; at temperature > 0 a warning unless length is forced.",
        judge=lengths_equal,
    ),
    "prompt_rendered_equal": Check(
        rule="Each prompt has as many prompt tokens as for the reference. Invalid otherwise.",
        judge=prompt_rendered_equal,
    ),
    "loops": Check(
        rule="At most 10 % of the outputs repeat themselves (share of distinct 4-grams below "
        "0.5), and less than half of any kind. Warning otherwise, invalid above 50 % of all.",
        judge=loops,
    ),
    "short_outputs": Check(
        rule="Each prompt's median output has 64 tokens. Warning below, invalid below 16; not "
        "asked where `max_tokens` is 1, which measures prefill.",
        judge=short_outputs,
    ),
    "buffered_stream": Check(
        rule="No stream of several outputs came in one burst. Warning otherwise; such a request "
        "has no rate.",
        judge=buffered_stream,
    ),
    "unterminated_final_event": Check(
        rule="No stream ended inside its last event. Warning otherwise.",
        judge=unterminated_final_event,
    ),
    "possible_cap": Check(
        rule="No output of exactly `max_tokens` says that it ended by itself. Warning otherwise.",
        judge=possible_cap,
    ),
    "over_cap": Check(
        rule="No output is longer than `max_tokens`. Warning otherwise.",
        judge=over_cap,
    ),
    "after_failure": Check(
        rule="No request was sent while the engine may have been busy with one that was given up. "
        "Warning otherwise.",
        judge=after_failure,
    ),
    "reconnected": Check(
        rule="No request was sent again because its connection had been closed. Warning otherwise.",
        judge=reconnected,
    ),
    "cache_state": Check(
        rule="No prompt came out of the engine's prefix cache. Warning otherwise.",
        judge=cache_state,
    ),
    "balanced_mix": Check(
        rule="Every prompt of the set finished equally often in a boot. Warning otherwise; such "
        "a level ends no crossover bracket.",
        judge=balanced_mix,
    ),
    "in_flight_is_c": Check(
        rule="The most requests in flight were the concurrency asked for. Warning below, "
        "invalid above. Of arrivals at a rate: fewer than allowed; warning where they waited.",
        judge=in_flight_is_c,
    ),
    "warmed_up": Check(
        rule="Every boot answered a warm-up request before the measured ones. Warning otherwise.",
        judge=warmed_up,
    ),
    "client_late": Check(
        rule="The client's lateness is at most 1 % of what it measures, and neither concurrency "
        "nor event rate lies above what the session's calibration reached. Warning otherwise.",
        judge=client_late,
    ),
    "client_busy": Check(
        rule="The client used at most 80 % of a core and its loop never stood still for 50 ms. "
        "Warning above, invalid above 95 %.",
        judge=client_busy,
    ),
    "speculator_kind": Check(
        rule="The engine names the drafter that was asked for. Invalid otherwise; undecided where "
        "it names none.",
        judge=speculator_kind,
    ),
    "k_le_block": Check(
        rule="k fits into the drafter's block beside the token it follows. Invalid otherwise.",
        judge=k_le_block,
    ),
    "synthetic_acceptance": Check(
        rule="The engine was not told how much to accept. Invalid otherwise.",
        judge=synthetic_acceptance,
    ),
    "flags_diff": Check(
        rule="What the engine says of its numeric settings is what was asked for. Invalid "
        "otherwise.",
        judge=flags_diff,
    ),
    "confounded": Check(
        rule="Nothing but the drafter differs from the reference: no flag, no variable. Warning "
        "otherwise.",
        judge=confounded,
    ),
    "unequal_depth": Check(
        rule="A reference that drafts has the same k. Warning otherwise.",
        judge=unequal_depth,
    ),
    "build_known": Check(
        rule="The engine says its version, and all boots ran one build. Warning without a "
        "version, invalid with two builds.",
        judge=build_known,
    ),
    "slots_ge_c": Check(
        rule="The engine works on as many requests at once as are in flight. Warning otherwise; "
        "undecided where it does not say.",
        judge=slots_ge_c,
    ),
    "context_fits": Check(
        rule="No output was cut off before `max_tokens`. Warning otherwise.",
        judge=context_fits,
    ),
    "thinking_off": Check(
        rule="With thinking off, outputs begin with the answer. Warning otherwise.",
        judge=thinking_off,
    ),
    "cold_in_measured": Check(
        rule="One at a time, a boot's first request takes at most 1.5 times as long as the same "
        "prompt later. Warning above.",
        judge=cold_in_measured,
    ),
    "scatter": Check(
        rule="One at a time and greedy, repetitions of a prompt in one boot lie within 10 % "
        "(median over prompts). Warning above.",
        judge=scatter,
    ),
    "drift": Check(
        rule="One at a time, a request takes as long in the last boot as in the first, within "
        "5 % (median over prompts). Warning above.",
        judge=drift,
    ),
    "within_one_boot": Check(
        rule="Two boots or more. Warning with one: such an interval decides nothing.",
        judge=within_one_boot,
    ),
    "split_session": Check(
        rule="The figure and its reference were measured in one session. Warning otherwise.",
        judge=split_session,
    ),
}
