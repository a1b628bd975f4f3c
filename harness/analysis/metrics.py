"""METRICS: every figure of a cell, by the name that tables, plots and `show --json` use.

A row says unit, direction and meaning, and names the function; a new metric is a function and a
row. Figures between cells (speed-up, scaling) are in comparisons.py and stand in `COMPARISONS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from harness.analysis import ledger, outputs, stats, throughput
from harness.analysis.measured import Measured, not_measured
from harness.analysis.stats import Groups
from harness.cell_view import CellView

Direction: TypeAlias = Literal["higher", "lower", "neither"]

DECODING = ("generate", "edit")
"""One request at a time, many tokens each."""

CONCURRENCY = ("concurrency",)
BOTH = DECODING + CONCURRENCY
ONE_AT_A_TIME = (*DECODING, "prefill")
ALL_WORKLOADS = (*BOTH, "prefill")

ARRIVALS = ("constant", "poisson")
C_IN_FLIGHT = ("wave", "closed")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`compute` gives the figure of a view. Where `groups` is set, the figure is the mean over
    groups of the median over repetitions, and an interval is made of it.
    """

    unit: str
    direction: Direction
    description: str
    compute: Callable[[CellView], Measured]
    groups: Callable[[CellView], Groups] | None = None
    workloads: tuple[str, ...] = BOTH
    by_kind: bool = True
    loads: tuple[str, ...] = ("single", "wave", "closed", "constant", "poisson")


def _figure(
    groups: Callable[[CellView], Groups], reason: Callable[[CellView], str]
) -> Callable[[CellView], Measured]:
    def compute(view: CellView) -> Measured:
        values = groups(view)
        value = stats.mean_of_medians(values)
        if value is None:
            return not_measured(reason(view))
        return Measured(value=value, n=sum(map(len, values)))

    return compute


def _why_no_steady(view: CellView) -> str:
    if len(view.ok) != len(view.requests):
        return "a request failed"
    return "the tokens of single events are not known"


METRICS: Mapping[str, Metric] = {
    "decode_rate": Metric(
        unit="tok/s",
        direction="higher",
        description="n / (wall - TTFT) of one stream; mean over prompts of the median over "
        "repetitions",
        compute=_figure(throughput.decode_rate_groups, throughput.why_no_rate),
        groups=throughput.decode_rate_groups,
    ),
    "decode_rate_strict": Metric(
        unit="tok/s",
        direction="higher",
        description="the same without the tokens of the first read: (n - n_first) / (t_last - "
        "t_first)",
        compute=_figure(throughput.decode_rate_strict_groups, throughput.why_no_rate),
        groups=throughput.decode_rate_strict_groups,
    ),
    "decode_rate_excess": Metric(
        unit="1",
        direction="neither",
        description="decode_rate / decode_rate_strict - 1: the first read's tokens, which the "
        "headline counts without their time, and the wait for the end of the stream",
        compute=throughput.decode_rate_excess,
    ),
    "tpot": Metric(
        unit="s",
        direction="lower",
        description="time per output token after the first read",
        compute=_figure(throughput.tpot_groups, throughput.why_no_rate),
        groups=throughput.tpot_groups,
    ),
    "step_time": Metric(
        unit="s",
        direction="lower",
        description="time between the starts of two bursts of a stream, median over its steps; no "
        "time per token, since a step may emit several",
        compute=_figure(throughput.step_time_groups, throughput.why_no_step),
        groups=throughput.step_time_groups,
        workloads=DECODING,
    ),
    "token_time_p50": Metric(
        unit="s",
        direction="lower",
        description="a step's time shared out evenly over the tokens it brought, median over "
        "tokens; their mean is tpot",
        compute=throughput.token_time_percentile(0.5),
        workloads=DECODING,
    ),
    "token_time_p99": Metric(
        unit="s",
        direction="lower",
        description="the same that 99 % of tokens kept; needs 100",
        compute=throughput.token_time_percentile(0.99),
        workloads=DECODING,
    ),
    "peak_rate": Metric(
        unit="tok/s",
        direction="neither",
        description="most tokens per second over any stretch of a stream of a second or longer, "
        "the first read included; where the engine tells only totals, shared out evenly over its "
        "events",
        compute=_figure(throughput.peak_rate_groups, throughput.why_no_peak),
        groups=throughput.peak_rate_groups,
        workloads=DECODING,
    ),
    "prefill_rate": Metric(
        unit="tok/s",
        direction="higher",
        description="prompt tokens that no cache held / TTFT, where max_tokens is 1; mean over "
        "prompts of the median over repetitions",
        compute=_figure(throughput.prefill_rate_groups, throughput.why_no_prefill),
        groups=throughput.prefill_rate_groups,
        workloads=ONE_AT_A_TIME,
    ),
    "prefill_rate_pooled": Metric(
        unit="tok/s",
        direction="higher",
        description="the same over all requests at once: all such tokens / the sum of their TTFT",
        compute=throughput.prefill_rate_pooled,
        workloads=ONE_AT_A_TIME,
    ),
    "ttfr_p50": Metric(
        unit="s",
        direction="lower",
        description="time to the first event of any kind, a comment or a role among them, median "
        "over requests",
        compute=throughput.percentile_of("ttfr_s", 0.5),
        workloads=ALL_WORKLOADS,
    ),
    "ttft_p50": Metric(
        unit="s",
        direction="lower",
        description="time to first token, median over requests",
        compute=throughput.percentile_of("ttft_s", 0.5),
        workloads=ALL_WORKLOADS,
    ),
    "ttft_p90": Metric(
        unit="s",
        direction="lower",
        description="time to first token that 90 % of requests kept; needs 10",
        compute=throughput.percentile_of("ttft_s", 0.9),
        workloads=ALL_WORKLOADS,
    ),
    "ttft_p99": Metric(
        unit="s",
        direction="lower",
        description="time to first token that 99 % of requests kept; needs 100",
        compute=throughput.percentile_of("ttft_s", 0.99),
        workloads=ALL_WORKLOADS,
    ),
    "ttfa_p50": Metric(
        unit="s",
        direction="lower",
        description="time to the first text of the answer itself, behind reasoning and tool calls, "
        "median over requests",
        compute=throughput.percentile_of("ttfa_s", 0.5),
        workloads=ALL_WORKLOADS,
    ),
    "wall_p50": Metric(
        unit="s",
        direction="lower",
        description="time to the end of the stream, median over requests",
        compute=throughput.percentile_of("wall_s", 0.5),
        workloads=ALL_WORKLOADS,
    ),
    "send_lateness_max": Metric(
        unit="s",
        direction="lower",
        description="longest time from the moment a request was due until its write; in no other "
        "figure",
        compute=throughput.longest("send_lateness_s", "no request was sent"),
        workloads=ALL_WORKLOADS,
    ),
    "connect_time_max": Metric(
        unit="s",
        direction="lower",
        description="longest time to open a connection that a request had to wait for; in no other "
        "figure",
        compute=throughput.longest("connect_s", "every connection was open before"),
        workloads=ALL_WORKLOADS,
    ),
    "ttft_from_schedule_p50": Metric(
        unit="s",
        direction="lower",
        description="first token after the moment the request should have arrived, whatever kept "
        "it from being sent; median over requests",
        compute=throughput.ttft_from_schedule_percentile(0.5),
        workloads=CONCURRENCY,
        loads=ARRIVALS,
    ),
    "ttft_from_schedule_p99": Metric(
        unit="s",
        direction="lower",
        description="the same that 99 % of requests kept; needs 100",
        compute=throughput.ttft_from_schedule_percentile(0.99),
        workloads=CONCURRENCY,
        loads=ARRIVALS,
    ),
    "aggregate_throughput": Metric(
        unit="tok/s",
        direction="higher",
        description="tokens of all streams / (last end - first start), TTFT included; median over "
        "waves or repetitions",
        compute=_figure(throughput.aggregate_throughput_groups, throughput.why_no_aggregate),
        groups=throughput.aggregate_throughput_groups,
        workloads=CONCURRENCY,
        by_kind=False,
    ),
    "aggregate_steady": Metric(
        unit="tok/s",
        direction="higher",
        description="the same over the part of a repetition in which c requests were in flight",
        compute=_figure(throughput.aggregate_steady_groups, _why_no_steady),
        groups=throughput.aggregate_steady_groups,
        workloads=CONCURRENCY,
        by_kind=False,
        loads=("closed",),
    ),
    "occupancy": Metric(
        unit="1",
        direction="higher",
        description="sum of walls / (c x window): the share of stream-seconds in use",
        compute=throughput.occupancy,
        workloads=CONCURRENCY,
        by_kind=False,
        loads=C_IN_FLIGHT,
    ),
    "acceptance_length": Metric(
        unit="tok/round",
        direction="higher",
        description="1 + accepted / drafts, from the engine's own counters",
        compute=ledger.acceptance_length,
    ),
    "acceptance_rate": Metric(
        unit="1",
        direction="higher",
        description="accepted / drafted tokens",
        compute=ledger.acceptance_rate,
    ),
    "fraction_of_ceiling": Metric(
        unit="1",
        direction="higher",
        description="acceptance_length / (k + 1)",
        compute=ledger.fraction_of_ceiling,
    ),
    "draft_coverage": Metric(
        unit="1",
        direction="higher",
        description="rounds with a draft / all decode steps",
        compute=ledger.draft_coverage,
    ),
    "tokens_per_step": Metric(
        unit="tok/step",
        direction="higher",
        description="(tokens - first tokens) / all decode steps",
        compute=ledger.tokens_per_step,
    ),
    "tokens_per_round": Metric(
        unit="tok/round",
        direction="higher",
        description="tokens / rounds, first tokens included: SGLang's acceptance length",
        compute=ledger.tokens_per_round,
    ),
    "tokens_per_step_and_prefill": Metric(
        unit="tok/step",
        direction="higher",
        description="tokens / (decode steps + prefills): specdec_bench's acceptance length",
        compute=ledger.tokens_per_step_and_prefill,
    ),
    "accepted_of_tested": Metric(
        unit="1",
        direction="higher",
        description="accepted / tested drafted tokens; those behind the first refused one are not "
        "tested",
        compute=ledger.accepted_of_tested,
    ),
    "token_identity_residual": Metric(
        unit="tok",
        direction="neither",
        description="tokens - (requests + rounds + plain steps + accepted - trimmed): 0 where "
        "every token is explained",
        compute=ledger.token_identity_residual,
    ),
    "engine_decode_rate": Metric(
        unit="tok/s",
        direction="higher",
        description="the engine's own clock: tokens / its decode seconds, first tokens counted "
        "without their time",
        compute=ledger.engine_decode_rate,
    ),
    "engine_draft_ms": Metric(
        unit="ms/round",
        direction="lower",
        description="the engine's own clock: drafting, per round",
        compute=ledger.draft_ms_per_round,
    ),
    "engine_verify_ms": Metric(
        unit="ms/round",
        direction="lower",
        description="the engine's own clock: the target's verification, per round",
        compute=ledger.verify_ms_per_round,
    ),
    "roof_fraction": Metric(
        unit="1",
        direction="higher",
        description="weight bytes that a step of the target reads at the least, times steps per "
        "second, over the device's `memory_bandwidth_GBps`",
        compute=ledger.roof_fraction,
        workloads=DECODING,
    ),
    "energy_per_token": Metric(
        unit="J/tok",
        direction="lower",
        description="mean power of the accelerators while the cell was measured, times its "
        "seconds, over its output tokens; the host's share is not in it",
        compute=throughput.energy_per_token,
        by_kind=False,
    ),
    "prompt_tokens_median": Metric(
        unit="tok",
        direction="neither",
        description="median prompt length by the engine's own count, chat template included",
        compute=outputs.prompt_tokens_median,
        workloads=ALL_WORKLOADS,
    ),
    "cached_share": Metric(
        unit="1",
        direction="neither",
        description="share of prompt tokens that came from the engine's prefix cache",
        compute=outputs.cached_share,
        workloads=ALL_WORKLOADS,
    ),
    "output_tokens_min": Metric(
        unit="tok",
        direction="neither",
        description="shortest output",
        compute=outputs.output_tokens_min,
    ),
    "output_tokens_median": Metric(
        unit="tok",
        direction="neither",
        description="median output length",
        compute=outputs.output_tokens_median,
    ),
    "output_tokens_max": Metric(
        unit="tok",
        direction="neither",
        description="longest output",
        compute=outputs.output_tokens_max,
    ),
    "first_tokens_median": Metric(
        unit="tok",
        direction="neither",
        description="n_first: tokens that had come within 1 ms of the first output, median over "
        "requests; a lower bound where the engine tells neither ids nor running totals",
        compute=outputs.first_tokens_median,
    ),
    "tokens_per_event": Metric(
        unit="tok/event",
        direction="neither",
        description="output tokens / events with output: why events are no tokens",
        compute=outputs.tokens_per_event,
    ),
    "loops": Metric(
        unit="1",
        direction="lower",
        description="share of outputs with fewer than half of their 4-grams distinct",
        compute=outputs.loops,
    ),
    "ended_by_itself": Metric(
        unit="1",
        direction="higher",
        description="share of outputs whose finish reason is stop",
        compute=outputs.ended_by_itself,
    ),
    "identical_outputs": Metric(
        unit="1",
        direction="higher",
        description="share of outputs identical to the reference's, at temperature 0",
        compute=outputs.identical_outputs,
        workloads=DECODING,
    ),
    "failed_share": Metric(
        unit="1",
        direction="lower",
        description="share of requests that failed; they are in no other figure",
        compute=throughput.failed_share,
        workloads=ALL_WORKLOADS,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    unit: str
    direction: Direction
    description: str


COMPARISONS: Mapping[str, Comparison] = {
    "speedup": Comparison(
        unit="x",
        direction="higher",
        description="the headline figure over the reference's: decode_rate in generate and edit, "
        "aggregate_throughput at the same c in concurrency, prefill_rate in prefill",
    ),
    "scaling": Comparison(
        unit="x",
        direction="higher",
        description="aggregate_throughput(c) / aggregate_throughput(1) of one variant",
    ),
    "efficiency": Comparison(
        unit="1", direction="higher", description="scaling / c: 1 is perfect scaling"
    ),
}

POSITION_METRICS: Mapping[str, Comparison] = {
    "acceptance_at_position": Comparison(
        unit="1",
        direction="higher",
        description="share of rounds that accepted the draft's first, second, ... token; rows are "
        "named acceptance_at_position_1, _2, ...",
    ),
    "conditional_acceptance_at_position": Comparison(
        unit="1",
        direction="higher",
        description="the same among the rounds that accepted the position before",
    ),
}

HEADLINE: Mapping[str, str] = {
    "generate": "decode_rate",
    "edit": "decode_rate",
    "concurrency": "aggregate_throughput",
    "prefill": "prefill_rate",
}
