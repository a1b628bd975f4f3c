"""What a reader with one minute must know, above everything else: who is first, which goals were
reached, what the design can see at all, and what is doubtful.
"""

from collections import Counter
from collections.abc import Iterator

from harness.analysis import standings
from harness.analysis.caveats import caveats
from harness.analysis.summary import Summary
from harness.records import Level
from harness.report import format as fmt
from harness.report import method
from harness.report.tables.goals import is_figure, tries_of, with_unit


def in_short(summary: Summary) -> Iterator[str]:
    """A line each, in Markdown's prose."""
    yield from _first(summary)
    yield from _goals(summary)
    yield from _visible(summary)
    yield _doubts(summary)
    yield method.purpose(summary)


def _first(summary: Summary) -> Iterator[str]:
    wins = list(standings.wins(summary))
    if not wins:
        return
    clear = Counter(win.winners[0] for win in wins if len(win.winners) == 1)
    told = [f"{variant} is clearly first at {count}" for variant, count in clear.most_common()]
    num_ties = len(wins) - clear.total()
    if num_ties:
        told.append(f"{num_ties} {'is a tie' if num_ties == 1 else 'are ties'}")
    places = fmt.counted(len(wins), "place")
    yield f"Winners: of {places} (kinds of prompt, levels of c, lengths) {fmt.listed(told)}."


def _goals(summary: Summary) -> Iterator[str]:
    for metric, goal in summary.manifest.goals.items():
        if not is_figure(metric):
            continue
        tries = [each for each in tries_of(summary, metric, goal) if each.is_known]
        num_reached = sum(each.reached is True for each in tries)
        said = f"Goal: {metric} of {with_unit(metric, goal)}, "
        yield said + (f"reached in {num_reached} of {len(tries)} cells." if tries else "no figure.")


def _visible(summary: Summary) -> Iterator[str]:
    effects = sorted(summary.visible_effects, key=lambda effect: effect.effect)
    if effects:
        least, most = effects[0], effects[-1]
        bounds = f"{fmt.percent(least.effect)} ({least.word})"
        if most is not least:
            bounds += f" to {fmt.percent(most.effect)} ({most.word})"
        yield f"What this design can see: differences from {bounds} on; a smaller one is none here."


def _doubts(summary: Summary) -> str:
    said = [_accused(summary, "invalid", "void"), _accused(summary, "warning", "warned of")]
    num_caveats = len(list(caveats(summary)))
    said.append(f"{fmt.counted(num_caveats, 'caveat')} by rule" if num_caveats else "no caveat")
    return f"Doubts: {'; '.join(said)}."


def _accused(summary: Summary, level: Level, word: str) -> str:
    bad = [verdict for verdict in summary.verdicts if verdict.level == level]
    if not bad:
        return f"no cell is {word}"
    cells = {verdict.cell_id for verdict in bad}
    checks = fmt.listed(list(dict.fromkeys(verdict.check for verdict in bad)))
    num_cells = len(summary.data.views)
    return f"{len(cells)} of {fmt.counted(num_cells, 'cell')} {word} ({checks})"
