"""compare(run, nights, rules): every figure of a run beside the same figure of a baseline.

Pure: two sides in, a `Comparison` out. How it looks is harness/report/comparison.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.compare import difference, words
from harness.compare.attribution import Cause, Moved, causes
from harness.compare.difference import Difference, Sample
from harness.compare.matching import Pair, match
from harness.compare.night import EXPLAINING, GATED, ByBoot, Figure, Night, unit_of
from harness.compare.rules import NIGHTS_NEEDED, Rules, Word
from harness.errors import UsageError
from harness.records import Estimate

NO_REGRESSION, REGRESSION, INCONCLUSIVE, NOT_COMPARABLE = 0, 1, 2, 3

PROMPTS_SHOWN = 2


@dataclass(frozen=True, kw_only=True)
class PromptChange:
    prompt_id: str
    change: float  # -0.1 is a tenth less


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure. `metric` is None where a whole subject could not be compared.

    `change` is relative, with its 95 % interval; `noise_floor` and `least_visible` are shares too,
    the latter the smallest change for the worse that would have been called a regression.
    """

    variant: str
    work: str
    metric: str | None
    word: Word
    reason: str | None = None
    baseline: float | None = None
    new: float | None = None
    change: Estimate | None = None
    noise_floor: float | None = None
    least_visible: float | None = None
    num_boots: int = 0
    num_nights: int = 0
    causes: tuple[Cause, ...] = ()
    prompts: tuple[PromptChange, ...] = ()  # that moved most, where the figure moved

    @property
    def unit(self) -> str:
        return unit_of(self.metric) if self.metric else ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    run: Night
    baseline: str  # its name, or the id of the run
    nights: tuple[Night, ...]
    rules: Rules
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def having(self, word: Word) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.word == word)

    @property
    def compared(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.word != "not comparable")

    @property
    def word(self) -> Word:
        """Of the whole: the worst that is certain, then doubt, then gain."""
        if not self.compared:
            return "not comparable"
        order: tuple[Word, ...] = ("regressed", "inconclusive", "improved")
        return next((word for word in order if self.having(word)), "within noise")

    @property
    def exit_code(self) -> int:
        """A regression in valid cells is told before that other cells are invalid."""
        if self.having("regressed"):
            return REGRESSION
        if not self.compared or self.run.level == "invalid":
            return NOT_COMPARABLE
        return INCONCLUSIVE if self.having("inconclusive") else NO_REGRESSION


def compare(run: Night, nights: Sequence[Night], *, baseline: str, rules: Rules) -> Comparison:
    if not nights:
        raise UsageError(f"baseline {baseline!r} holds no run; add one: dflashbench baseline add")
    others = [night for night in nights if night.run_id != run.run_id]
    itself = not others
    used = tuple(others or nights)
    pairs = match(run, used)
    there = tuple(night for night in used if night.device_key == run.device_key)
    return Comparison(
        run=run,
        baseline=baseline,
        nights=there or used,
        rules=rules,
        rows=_rows(pairs, rules, itself=itself),
        notes=tuple(_notes(run, nights, used)),
    )


def _notes(run: Night, nights: Sequence[Night], used: Sequence[Night]) -> list[str]:
    if used[0].run_id == run.run_id:
        return ["The run is its own baseline: every figure is held against itself."]
    notes = []
    if len(used) < len(nights):
        notes.append("The run is itself part of the baseline; it is held against the others alone.")
    elsewhere = [night.run_id for night in used if night.device_key != run.device_key]
    if elsewhere:
        notes.append(f"Measured on another device and left out: {', '.join(elsewhere)}.")
    there = len(used) - len(elsewhere)
    if there < NIGHTS_NEEDED:
        notes.append(
            f"The baseline has {there} of the {NIGHTS_NEEDED} nights that show what a night does: "
            "boots are the sample, and a change may be the hour's as well as the build's."
        )
    if run.level == "invalid":
        notes.append("The run has invalid cells; `dflashbench report` says which and why.")
    return notes


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A figure to be judged, or the reason why it, or its whole subject, is not."""

    pair: Pair
    metric: str | None = None
    sample: Sample | None = None
    reason: str | None = None


def _rows(pairs: Sequence[Pair], rules: Rules, *, itself: bool) -> tuple[Row, ...]:
    """All figures are judged at once: how many there are is part of the noise floor."""
    cases = [case for pair in pairs for case in _cases(pair)]
    samples = [case.sample for case in cases if case.sample is not None]
    found = iter(difference.differences(samples))
    return tuple(
        _refused(case)
        if case.sample is None
        else _judged(case.pair, case.sample, next(found), rules, itself=itself)
        for case in cases
    )


def _cases(pair: Pair) -> Iterator[_Case]:
    if pair.new is None or pair.reason is not None:
        yield _Case(pair=pair, reason=pair.reason)
        return
    for metric in GATED:
        ours = pair.new.figures.get(metric)
        theirs = [night.figures[metric] for night in pair.nights if metric in night.figures]
        if ours is None and not theirs:
            continue  # it does not apply, or was never known: nothing is lost
        if ours is None:
            reason = f"n/a in the run: {pair.new.reasons.get(metric, 'not measured')}"
        elif not theirs:
            told = pair.nights[-1].reasons.get(metric, "not measured")
            reason = f"n/a in the baseline: {told}"
        else:
            yield _Case(pair=pair, metric=metric, sample=_sample(metric, ours, theirs))
            continue
        yield _Case(pair=pair, metric=metric, reason=reason)


def _sample(metric: str, ours: Figure, theirs: Sequence[Figure]) -> Sample:
    return Sample(
        metric=metric,
        new=tuple(ours.by_boot.values()),
        nights=tuple(tuple(figure.by_boot.values()) for figure in theirs),
    )


def _refused(case: _Case) -> Row:
    shown = case.pair.shown
    return Row(
        variant=shown.variant,
        work=shown.work,
        metric=case.metric,
        word="not comparable",
        reason=case.reason,
    )


def _judged(pair: Pair, sample: Sample, found: Difference, rules: Rules, *, itself: bool) -> Row:
    assert pair.new is not None
    metric = sample.metric
    said = words.say(metric, found, rules, history=sample.has_history, itself=itself)
    moved = said.word not in ("within noise", "not comparable")
    return Row(
        variant=pair.new.variant,
        work=pair.new.work,
        metric=metric,
        word=said.word,
        reason=said.reason,
        baseline=found.baseline,
        new=found.new,
        change=_estimate(found, num_boots=len(sample.new)),
        noise_floor=None if found.noise_floor is None else math.expm1(found.noise_floor),
        least_visible=words.least_visible(metric, found, rules),
        num_boots=len(sample.new),
        num_nights=len(sample.nights),
        causes=causes(metric, _moved(pair)) if moved else (),
        prompts=_prompts(pair, metric) if moved else (),
    )


def _estimate(found: Difference, *, num_boots: int) -> Estimate:
    """The change as a share of the baseline: -0.1 is a tenth less."""
    change = math.expm1(found.change)
    if found.reach is None:
        reason = "no interval: too few boots"
        return Estimate(value=change, unit="1", n=num_boots, reason=reason)
    return Estimate(
        value=change,
        low=math.expm1(found.change - found.reach),
        high=math.expm1(found.change + found.reach),
        unit="1",
        n=num_boots,
        method=found.method,
    )


# --- why ------------------------------------------------------------------------------------------


def _moved(pair: Pair) -> Mapping[str, Moved]:
    assert pair.new is not None
    moved = {}
    for metric in (*GATED, *EXPLAINING):
        ours = pair.new.figures.get(metric)
        theirs = [night.figures[metric] for night in pair.nights if metric in night.figures]
        if ours is not None and theirs:
            moved[metric] = _between(ours.by_boot, [figure.by_boot for figure in theirs])
    return moved


def _between(ours: ByBoot, theirs: Sequence[ByBoot]) -> Moved:
    baseline = fmean(_mean_log(night) for night in theirs)
    return Moved(baseline=math.exp(baseline), new=math.exp(_mean_log(ours)))


def _mean_log(by_boot: ByBoot) -> float:
    return fmean(math.log(value) for value in by_boot.values())


def _prompts(pair: Pair, metric: str) -> tuple[PromptChange, ...]:
    """Those that moved most, up or down."""
    assert pair.new is not None
    if metric not in pair.new.figures:
        return ()
    changes = []
    for prompt_id, ours in pair.new.figures[metric].by_prompt.items():
        stored = [n.figures[metric].by_prompt for n in pair.nights if metric in n.figures]
        theirs = [prompts[prompt_id] for prompts in stored if prompts.get(prompt_id)]
        if ours and theirs:
            change = math.expm1(_between(ours, theirs).log_ratio)
            changes.append(PromptChange(prompt_id=prompt_id, change=change))
    changes.sort(key=lambda prompt: abs(prompt.change), reverse=True)
    return tuple(changes[:PROMPTS_SHOWN])
