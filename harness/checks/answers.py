"""What came back: requests that failed, and outputs that say little or carry a flag."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from harness import measures
from harness.cell_view import CellView
from harness.checks.finding import OK, CheckFunction, Finding, invalid, warning
from harness.records import Request

FAILED_SHARE_LIMIT = 0.05
LOOPS_LIMIT = 0.10
LOOPS_VOID = 0.50
LOOPS_OF_A_KIND = 0.50
SHORT_OUTPUT_TOKENS = (
    64  # n / (n - 1) is 1.6 % there: the decode rate's first token begins to matter
)
VOID_OUTPUT_TOKENS = 16  # 6.7 %


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
        return invalid(message)
    return warning(message)


def short_outputs(view: CellView) -> Finding:
    lengths = median_lengths(view.ok)
    if not lengths or view.cell.max_tokens == 1:  # asked for prefill alone: no decode rate is shown
        return OK
    prompt, shortest = min(lengths.items(), key=lambda item: item[1])
    if shortest >= SHORT_OUTPUT_TOKENS:
        return OK
    num_short = sum(length < SHORT_OUTPUT_TOKENS for length in lengths.values())
    message = (
        f"The outputs of {num_short} of {len(lengths)} prompts are short, those of {prompt!r} "
        f"have {shortest:g} tokens (median). decode_rate counts the first token but not its time, "
        f"{100 / max(shortest - 1, 1):.1f} % too much there. Take prompts with longer answers, a "
        "higher `max_tokens` or `length: forced`."
    )
    return invalid(message) if shortest < VOID_OUTPUT_TOKENS else warning(message)


def median_lengths(requests: Iterable[Request]) -> Mapping[str, float]:
    lengths: dict[str, list[int]] = defaultdict(list)
    for request in requests:
        if request.output_tokens is not None:
            lengths[request.prompt_id].append(request.output_tokens)
    return {prompt: median(values) for prompt, values in lengths.items()}


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
    return invalid(message) if looping / len(known) > LOOPS_VOID else warning(message)


def _kind_that_loops_most(view: CellView) -> tuple[str, float]:
    """And its share of looping outputs: in a table by kind it is a row of its own."""
    loops_of: dict[str, list[bool]] = defaultdict(list)
    for request in view.ok:
        looping = measures.loops(request.distinct_4gram_share)
        if looping is not None:
            loops_of[request.kind].append(looping)
    shares = {kind: sum(loops) / len(loops) for kind, loops in loops_of.items()}
    return max(shares.items(), key=lambda item: item[1])


def impossible_rate(view: CellView) -> Finding:
    ceiling = view.cell.rate_ceiling_tok_per_s
    rates = [rate for request in view.ok if (rate := _rate(request)) is not None]
    guilty = [rate for rate in rates if ceiling is not None and rate > ceiling]
    if not guilty:
        return OK
    return invalid(
        f"{len(guilty)} of {len(view.ok)} streams would be faster than {ceiling:g} tok/s, up to "
        f"{max(guilty):.0f}. Look for a token count that is not theirs or a stream that was held "
        "back; if the engine is so fast, raise `client: {rate_ceiling_tok_per_s}`."
    )


def _rate(request: Request) -> float | None:
    if "buffered_stream" in request.flags:  # it has none, and a check of its own
        return None
    return measures.decode_rate(
        request.output_tokens,
        request.first_tokens,
        request.ttft_s,
        request.t_last_s,
        request.wall_s,
    )


def _flagged(flag: str, advice: str) -> CheckFunction:
    """A warning as soon as one request carries the flag."""

    def judge(view: CellView) -> Finding:
        guilty = [request for request in view.requests if flag in request.flags]
        if not guilty:
            return OK
        return warning(f"{len(guilty)} of {len(view.requests)} requests: {advice}")

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
    return warning(
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
    return warning(
        f"{len(thought)} of {len(view.ok)} outputs began with something else than the answer "
        "although thinking is off. Look whether the engine's chat template knows the switch."
    )
