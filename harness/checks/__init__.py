"""What makes a cell trustworthy, questionable or void: a pure function per rule of docs/checks.md.

A check sees the recorded facts of one cell (`CellView`) and answers ok, warning or invalid with a
sentence that says what to do. It measures nothing and reads nothing; the same function may judge
during a run or in a report. What cannot be decided from the facts is ok: a check accuses only with
evidence, and a table shows the gap.

A check lives in the module of its subject, and `CHECKS` below names them all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.cell_view import CellView
from harness.checks import (
    answers,
    checkpoints,
    client,
    comparison,
    completeness,
    counters,
    engine,
    load,
    losslessness,
    machine,
    methods,
    room,
    sessions,
    speculation,
    steadiness,
    templates,
    warmup,
)
from harness.checks.finding import CheckFunction
from harness.records import Level, Verdict


@dataclass(frozen=True, kw_only=True)
class Check:
    """`rule` is the line of docs/checks.md: what is asked, and from where on it is a warning or
    invalid. `before_start`: the plan and the models' files tell enough to ask it of what was not
    measured yet.
    """

    rule: str
    judge: CheckFunction
    before_start: bool = False


def judge(view: CellView) -> tuple[Verdict, ...]:
    """Every check's word on a cell, in the table's order. Where records are missing, that of those
    which say so: the others would take what is missing for a fault of the engine.
    """
    there = _ask(_OF_RECORDS, view)
    return there if not view.requests or worst(there) == "invalid" else _ask(CHECKS, view)


def judge_plan(view: CellView) -> tuple[Verdict, ...]:
    """What can be said of a cell before any engine was started."""
    return _ask({name: check for name, check in CHECKS.items() if check.before_start}, view)


def _ask(checks: Mapping[str, Check], view: CellView) -> tuple[Verdict, ...]:
    return tuple(
        Verdict(
            check=name,
            level=found.level,
            message=found.message,
            cell_id=view.cell.cell_id,
            touches=found.touches,
        )
        for name, check in checks.items()
        for found in (check.judge(view),)
    )


def worst(verdicts: Iterable[Verdict]) -> Level:
    levels = {verdict.level for verdict in verdicts}
    if "invalid" in levels:
        return "invalid"
    return "warning" if "warning" in levels else "ok"


CHECKS: Mapping[str, Check] = {
    "available": Check(
        rule="Every block that was to measure the cell finished it. Warning when some did not, "
        "invalid when none did.",
        judge=completeness.available,
    ),
    "records_whole": Check(
        rule="Every repetition has as many requests on the disk as it was measured with. Invalid "
        "otherwise.",
        judge=completeness.records_whole,
    ),
    "speculation_active": Check(
        rule="A variant with a drafter drafted, a plain one did not. Invalid; warning where the "
        "engine keeps no count, and where more were in flight than it is told to draft for.",
        judge=speculation.speculation_active,
    ),
    "all_rejected": Check(
        rule="Of 20 rounds or more some accepted a draft: an acceptance length of 1.01 or more. "
        "Invalid below.",
        judge=speculation.all_rejected,
    ),
    "al_within_k_plus_1": Check(
        rule="The acceptance length is at most k + 1, and no more is accepted than drafted. "
        "Invalid above.",
        judge=speculation.al_within_k_plus_1,
    ),
    "drafted_depth": Check(
        rule="A round drafts k tokens. Invalid above k; warning below 95 % of it.",
        judge=speculation.drafted_depth,
    ),
    "draft_coverage": Check(
        rule="At least half of the decode steps had a draft. Warning below: the acceptance length "
        "is that of the others.",
        judge=speculation.draft_coverage,
    ),
    "saturated": Check(
        rule="Warning from 97 % of the ceiling k + 1 on: only a larger block would help.",
        judge=speculation.saturated,
    ),
    "token_identity": Check(
        rule="tokens = requests + rounds + plain steps + accepted - trimmed. Invalid otherwise; "
        "an engine that does not count trimmed tokens may be short by k tokens per request.",
        judge=counters.token_identity,
    ),
    "positions_add_up": Check(
        rule="Accepted tokens per position add up to the accepted tokens. Invalid otherwise.",
        judge=counters.positions_add_up,
    ),
    "counter_reset": Check(
        rule="No counter falls and no process is replaced between two readings. Invalid.",
        judge=counters.counter_reset,
    ),
    "counter_foreign_label": Check(
        rule="All counters carry one model's label. Invalid otherwise.",
        judge=counters.counter_foreign_label,
    ),
    "foreign_traffic": Check(
        rule="The engine counted no more requests and tokens than ours. Invalid; a failed request "
        "may have had all of its tokens.",
        judge=counters.foreign_traffic,
    ),
    "failed_share": Check(
        rule="No request failed. Warning up to 5 %, invalid above.",
        judge=answers.failed_share,
    ),
    "lengths_equal": Check(
        rule="Each prompt's median output length equals the reference's. Warning within 10 %, "
        "invalid beyond; at temperature > 0 a warning unless length is forced.",
        judge=comparison.lengths_equal,
        before_start=True,
    ),
    "prompt_rendered_equal": Check(
        rule="Each prompt has as many prompt tokens as for the reference. Invalid otherwise.",
        judge=comparison.prompt_rendered_equal,
    ),
    "template_equal": Check(
        rule="The target's chat template is the reference's, where both lie on this machine. "
        "Warning otherwise.",
        judge=templates.template_equal,
        before_start=True,
    ),
    "rendered_alike": Check(
        rule="Each prompt is rendered to the same tokens in every boot and for the reference, by "
        "their hashes, where the engines tell. Invalid otherwise.",
        judge=templates.rendered_alike,
    ),
    "lossless": Check(
        rule="One at a time and greedy, no output of a drafter differs for real from plain "
        "decoding's, by the odds that its engine tells. Invalid otherwise; warning where plain "
        "decoding differs from itself for real.",
        judge=losslessness.lossless,
    ),
    "loops": Check(
        rule="At most 10 % of the outputs repeat themselves (share of distinct 4-grams below "
        "0.5), and less than half of any kind. Warning otherwise, invalid above 50 % of all.",
        judge=answers.loops,
    ),
    "short_outputs": Check(
        rule="Each prompt's median output has 64 tokens. Warning below, invalid below 16; not "
        "asked where `max_tokens` is 1, which measures prefill.",
        judge=answers.short_outputs,
    ),
    "buffered_stream": Check(
        rule="No stream of several outputs came in one burst. Warning otherwise; such a request "
        "has no rate.",
        judge=answers.buffered_stream,
    ),
    "impossible_rate": Check(
        rule="No stream is faster than the matrix's `rate_ceiling_tok_per_s`. Invalid above; no "
        "rate is read from it.",
        judge=answers.impossible_rate,
    ),
    "unterminated_final_event": Check(
        rule="No stream ended inside its last event. Warning otherwise.",
        judge=answers.unterminated_final_event,
    ),
    "possible_cap": Check(
        rule="No output of exactly `max_tokens` says that it ended by itself. Warning otherwise.",
        judge=answers.possible_cap,
    ),
    "over_cap": Check(
        rule="No output is longer than `max_tokens`. Warning otherwise.",
        judge=answers.over_cap,
    ),
    "after_failure": Check(
        rule="No request was sent while the engine may have been busy with one that was given up. "
        "Warning otherwise.",
        judge=answers.after_failure,
    ),
    "reconnected": Check(
        rule="No request was sent again because its connection had been closed. Warning otherwise.",
        judge=answers.reconnected,
    ),
    "cache_state": Check(
        rule="No prompt came out of the engine's prefix cache, or 1 % of the prompt tokens where "
        "only they are counted. Warning otherwise. Of warm prompts: some did.",
        judge=engine.cache_state,
    ),
    "balanced_mix": Check(
        rule="Every prompt of the set finished equally often in a boot. Warning otherwise; such "
        "a level ends no crossover bracket.",
        judge=load.balanced_mix,
    ),
    "in_flight_is_c": Check(
        rule="The most requests in flight were the concurrency asked for. Warning below, "
        "invalid above. Of arrivals at a rate: fewer than allowed; warning where they waited.",
        judge=load.in_flight_is_c,
    ),
    "warmed_up": Check(
        rule="Every boot answered a warm-up request before the measured ones, and of several "
        "passes the last two took as long, within 10 %. Warning otherwise.",
        judge=warmup.warmed_up,
    ),
    "client_late": Check(
        rule="The client's lateness is at most 1 % of what it measures, and neither concurrency "
        "nor event rate lies above what the session's calibration reached. Warning otherwise.",
        judge=client.client_late,
    ),
    "client_busy": Check(
        rule="The client used at most 80 % of a core and its loop never stood still for 50 ms. "
        "Warning above, invalid above 95 %.",
        judge=client.client_busy,
    ),
    "speculator_kind": Check(
        rule="The engine names the drafter that was asked for, or says that it drafts where one "
        "was and not where none was; a DFlash 2 drafter is one by its config.json. Invalid "
        "otherwise. On vLLM it ran on the V2 model runner: invalid on V1, warning where the log "
        "does not tell.",
        judge=speculation.speculator_kind,
        before_start=True,
    ),
    "checkpoint_complete": Check(
        rule="Every file that a model's index names, or that its shards' numbers promise, is "
        "there to its end, the index and config.json among them. Invalid otherwise.",
        judge=checkpoints.checkpoint_complete,
        before_start=True,
    ),
    "checkpoint_format": Check(
        rule="llama.cpp is given GGUF files, other engines folders of safetensors. Invalid "
        "otherwise.",
        judge=checkpoints.checkpoint_format,
        before_start=True,
    ),
    "drafter_known": Check(
        rule="The drafter's method is a word of the engine, and vLLM is 0.32 or newer for DFlash 2 "
        "or has it laid over. Invalid otherwise; warning between 0.28 and 0.31.",
        judge=methods.drafter_known,
        before_start=True,
    ),
    "mtp_head": Check(
        rule="A target that is to draft with its own MTP head has one. Invalid otherwise.",
        judge=checkpoints.mtp_head,
        before_start=True,
    ),
    "drafter_geometry": Check(
        rule="A DFlash drafter's hidden size, vocabulary, tapped layers and mask token are the "
        "target's. Invalid otherwise.",
        judge=checkpoints.drafter_geometry,
        before_start=True,
    ),
    "drafter_differs": Check(
        rule="The drafter is the checkpoint that its file in configs/models says published figures "
        "are of. Warning otherwise.",
        judge=checkpoints.drafter_differs,
        before_start=True,
    ),
    "lm_head_plain": Check(
        rule="For DFlash 2 on vLLM before 0.32 the target's LM head is not quantised. Invalid "
        "otherwise, warning where the version is not known.",
        judge=checkpoints.lm_head_plain,
        before_start=True,
    ),
    "k_le_block": Check(
        rule="k fits into the drafter's block beside the token it follows. Invalid otherwise.",
        judge=checkpoints.k_le_block,
        before_start=True,
    ),
    "synthetic_acceptance": Check(
        rule="The engine was not told how much to accept. Invalid otherwise.",
        judge=speculation.synthetic_acceptance,
        before_start=True,
    ),
    "flags_diff": Check(
        rule="What the engine says of its numeric settings is what was asked for. Invalid "
        "otherwise.",
        judge=engine.flags_diff,
    ),
    "confounded": Check(
        rule="Nothing but the drafter and its own settings differs from the reference: no other "
        "flag, no variable. Warning otherwise.",
        judge=comparison.confounded,
        before_start=True,
    ),
    "unequal_depth": Check(
        rule="A reference that drafts has the same k. Warning otherwise.",
        judge=comparison.unequal_depth,
        before_start=True,
    ),
    "build_known": Check(
        rule="The engine says its version, and all boots ran one build. Warning without a "
        "version, invalid with two builds.",
        judge=engine.build_known,
    ),
    "slots_ge_c": Check(
        rule="The engine works on as many requests at once as are in flight. Warning otherwise; "
        "undecided where it does not say.",
        judge=engine.slots_ge_c,
        before_start=True,
    ),
    "context_asked": Check(
        rule="The context that the engine is asked for holds `max_tokens` and a prompt, invalid "
        "otherwise, and is no longer than the target's own: invalid on vLLM, which refuses it, "
        "warning elsewhere.",
        judge=room.context_asked,
        before_start=True,
    ),
    "kv_fits": Check(
        rule="All requests in flight find room for their keys and values, as the engine says how "
        "much it has. Warning otherwise. Before a start: weights and one request of full length "
        "fit into the matrix's `memory_GB`; invalid otherwise.",
        judge=room.kv_fits,
        before_start=True,
    ),
    "preemptions": Check(
        rule="The engine took no running request's keys and values away. Invalid otherwise.",
        judge=engine.preemptions,
    ),
    "context_fits": Check(
        rule="No output was cut off before `max_tokens`. Warning otherwise.",
        judge=answers.context_fits,
    ),
    "thinking_off": Check(
        rule="With thinking off, outputs begin with the answer. Warning otherwise.",
        judge=answers.thinking_off,
    ),
    "thinking_said": Check(
        rule="A target whose template can switch thinking off is told whether to think. Warning "
        "otherwise.",
        judge=templates.thinking_said,
        before_start=True,
    ),
    "cold_in_measured": Check(
        rule="One at a time, a boot's first request takes at most 1.5 times as long as the same "
        "prompt later. Warning above.",
        judge=steadiness.cold_in_measured,
    ),
    "scatter": Check(
        rule="One at a time and greedy, repetitions of a prompt in one boot lie within 10 % "
        "(median over prompts). Warning above.",
        judge=steadiness.scatter,
    ),
    "throttled": Check(
        rule="While it was measured, no accelerator and no CPU was slowed down by heat, power "
        "brake or hardware, and a hypervisor took at most 5 % of the CPU time. Warning otherwise.",
        judge=machine.throttled,
    ),
    "roof": Check(
        rule="Plain decoding, one at a time, reads its weights no faster than the matrix's "
        "`memory_bandwidth_GBps`. Invalid above.",
        judge=machine.roof,
    ),
    "drift": Check(
        rule="One at a time, a request takes as long in the last boot as in the first, within "
        "5 % (median over prompts). Warning above.",
        judge=steadiness.drift,
    ),
    "within_one_boot": Check(
        rule="Two boots or more. Warning with one: such an interval decides nothing.",
        judge=completeness.within_one_boot,
        before_start=True,
    ),
    "control": Check(
        rule="The control took as long at the end of a session as at its beginning, within 5 % "
        "(median over prompts). Warning above.",
        judge=sessions.control,
    ),
    "split_session": Check(
        rule="The figure and its reference were measured in one session, or a control says that "
        "both sessions were alike, within 5 %. Warning otherwise.",
        judge=sessions.split_session,
    ),
    "suspended": Check(
        rule="The machine did not sleep while it was measured. Invalid from one second on.",
        judge=sessions.suspended,
    ),
}

_OF_RECORDS = {name: CHECKS[name] for name in ("available", "records_whole")}
