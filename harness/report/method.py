"""How a run was made, in words: what was asked and how often, in which order, by which counters."""

from collections.abc import Iterator

from harness.analysis.summary import Section, Summary, VisibleEffect
from harness.report import format as fmt
from harness.report import sentences


def lines(summary: Summary) -> Iterator[str]:
    """A sentence each."""
    for section in summary.sections:
        yield workload(section)
    plan = summary.manifest.plan
    order = fmt.listed([block.variant for block in plan.blocks])
    yield (
        f"Each block is one boot of a variant's engine with all its cells; the order was {order}."
    )
    yield _sampling(summary)
    if summary.manifest.held_constant:
        held = ", ".join(f"{key} {value}" for key, value in summary.manifest.held_constant.items())
        yield f"Held constant for every variant: {held}."
    if summary.manifest.budget is not None:
        yield from (f"Cut by the budget: {cut}" for cut in summary.manifest.budget.cuts)
    yield from _visible(summary)
    yield _counters(summary)


def purpose(summary: Summary) -> str:
    """What the run is for."""
    if summary.manifest.purpose == "smoke":
        return "This is a smoke run: it shows that the pieces work together and measures nothing."
    return "This is a measurement: its figures may be quoted with their intervals and caveats."


def workload(section: Section) -> str:
    """What was asked of every cell of a section, and how often."""
    cell = section.views[0].cell
    num_prompts = len(section.views[0].prompt_kinds)
    levels = "" if section.is_single else f", c = {sentences.numbers(section.levels)}"
    return (
        f"{section.word}: {fmt.counted(num_prompts, 'prompt')} of set {section.prompt_set}, "
        f"{sentences.SHAPES[section.load]}{levels}, {_repetitions(section)} per boot, "
        f"assignment {cell.assignment}, at most {fmt.counted(section.max_tokens, 'token')}, length "
        f"{cell.length}{_caches(section)}; protocol {section.protocol_id}."
    )


def _caches(section: Section) -> str:
    """Nothing of a run from before it was asked."""
    cell = section.views[0].cell
    if cell.cache is None:
        return ""
    salted = any(any(view.sent.labels("salt")) for view in section.views)
    return f", prompts {cell.cache}" + (" behind a salt" if salted else "")


def _repetitions(section: Section) -> str:
    """3 repetitions; where levels differ: 10 and 2 repetitions (in this order of c)."""
    counts = {view.cell.concurrency: view.cell.repetitions for view in section.views}
    if len(set(counts.values())) == 1:
        return fmt.counted(next(iter(counts.values())), "repetition")
    in_order = [counts[level] for level in section.levels]
    return f"{sentences.numbers(in_order)} repetitions (in this order of c)"


def _sampling(summary: Summary) -> str:
    sampling = summary.data.views[0].cell.sampling
    said = [f"temperature {sampling.temperature:g}"]
    for name in ("top_p", "top_k", "seed", "thinking"):
        value = getattr(sampling, name)
        if value is not None:
            said.append(f"{name} {value}")
    return f"Sampling: {', '.join(said)}."


def _visible(summary: Summary) -> Iterator[str]:
    effects = summary.visible_effects
    if effects:
        told = "; ".join(_effect(effect) for effect in effects)
        boots = fmt.listed(list(dict.fromkeys(str(effect.boots) for effect in effects)))
        yield (
            f"The smallest difference that can be told from none, with {boots} boots a side and "
            f"the spread between boots seen here: {told}."
        )


def _effect(effect: VisibleEffect) -> str:
    return (
        f"{effect.word} {fmt.percent(effect.effect)} (boots spread by {fmt.percent(effect.spread)})"
    )


def _counters(summary: Summary) -> str:
    """How quiet the engine was, as its readings tell: what was not quiet left no acceptance."""
    if not summary.quiet:
        return "No engine of this run keeps counters that we know: nothing is said of acceptance."
    said = (
        "Counters are the engine's own, read while it was quiet: around every request with one "
        "stream, around each wave or repetition under load."
    )
    if None in summary.quiet:
        said += " Where an engine cannot tell, two readings one second apart had to be equal."
    return said
