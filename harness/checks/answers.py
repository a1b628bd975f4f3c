"""What came back: requests that failed, and outputs that say little or carry a flag."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from harness import measures
from harness.cell_view import CellView
from harness.checks.finding import OK, CheckFunction, Finding, invalid, warning
from harness.requests import Requests, middle

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
    kinds = Counter(view.sent.counts("error"))
    del kinds[None]  # those that did not fail
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


def median_lengths(requests: Requests) -> Mapping[str, float]:
    lengths = requests.grouped("output_tokens")
    return {str(prompt): middle(each) for prompt, each in lengths.items()}


def loops(view: CellView) -> Finding:
    known = view.ok.known("distinct_4gram_share")
    looping = int(np.count_nonzero(known < measures.LOOP_SHARE))
    if not len(known):
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


def _kind_that_loops_most(view: CellView) -> tuple[str | None, float]:
    """And its share of looping outputs: in a table by kind it is a row of its own."""
    known = view.ok.grouped("distinct_4gram_share", by="kind")
    shares = {
        kind: int(np.count_nonzero(of_kind < measures.LOOP_SHARE)) / len(of_kind)
        for kind, of_kind in known.items()
    }
    return max(shares.items(), key=lambda item: item[1])


def impossible_rate(view: CellView) -> Finding:
    ceiling = view.cell.rate_ceiling_tok_per_s
    if ceiling is None:
        return OK
    rates = view.ok.column("decode_rate")
    # a stream that was held back has no rate, and a check of its own
    in_its_time = rates.known & ~view.ok.flagged("buffered_stream")
    guilty = rates.values[in_its_time & (rates.values > ceiling)]
    if not len(guilty):
        return OK
    return invalid(
        f"{len(guilty)} of {len(view.ok)} streams would be faster than {ceiling:g} tok/s, up to "
        f"{max(guilty):.0f}. Look for a token count that is not theirs or a stream that was held "
        "back; if the engine is so fast, raise `client: {rate_ceiling_tok_per_s}`."
    )


def _flagged(flag: str, advice: str) -> CheckFunction:
    """A warning as soon as one request carries the flag."""

    def judge(view: CellView) -> Finding:
        guilty = int(np.count_nonzero(view.sent.flagged(flag)))
        if not guilty:
            return OK
        return warning(f"{guilty} of {len(view.sent)} requests: {advice}")

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
    tokens = view.ok.column("output_tokens")
    too_few = tokens.known & (tokens.values < view.cell.max_tokens)
    cut = np.flatnonzero(too_few & view.ok.has("finish_reason", "length"))
    if not len(cut):
        return OK
    first = view.ok[int(cut[0])]
    return warning(
        f"{len(cut)} of {len(view.ok)} outputs were cut off before `max_tokens` "
        f"({first.output_tokens} of {view.cell.max_tokens} tokens for {first.prompt_id!r}): the "
        "engine's context was full. Raise its context length, or lower `max_tokens`."
    )


def thinking_off(view: CellView) -> Finding:
    if view.cell.sampling.thinking is not False:
        return OK
    first, answer = view.ok.column("ttft_s"), view.ok.column("ttfa_s")
    late = ~answer.known | (answer.values > first.values)
    thought = int(np.count_nonzero(first.known & late))
    if not thought:
        return OK
    return warning(
        f"{thought} of {len(view.ok)} outputs began with something else than the answer "
        "although thinking is off. Look whether the engine's chat template knows the switch."
    )
