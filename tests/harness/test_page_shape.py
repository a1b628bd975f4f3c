"""The page for a reader who has five minutes: what stands at its top, what is folded away, and that
it says no thing twice.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.summary import Summary, summarise
from harness.records import Model, Request, Verdict
from harness.report import plots, sentences
from harness.report.in_short import in_short
from harness.report.markdown import Links, markdown_table
from harness.report.page import results_page
from harness.report.tables import TABLES, Accusation, Entry, Table, label
from harness.report.tables.notes import merged

from . import synthetic
from .cases.from_records import at_rate
from .cases.from_records import prompts as cases_prompts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Waves of one, sixteen and thirty-two; the drafter falls behind between the first two."""
    asked = replace(synthetic.matrix(levels=(1, 16, 32), boots=4), goals={"decode_rate": 50.0})
    return summarise(synthetic.write_run(tmp_path_factory.mktemp("results"), asked))


@pytest.fixture(scope="module")
def page(run: Summary) -> str:
    return results_page(run, plots.pictures(run))


def visible(page: str) -> str:
    """What a reader sees who opens nothing."""
    while "<details>" in page:
        page = re.sub(r"<details>((?!<details>).)*?</details>", "", page, count=1, flags=re.DOTALL)
    return page


# --- order ----------------------------------------------------------------------------------------


def test_the_page_has_the_published_order(page: str) -> None:
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [
        "Method",
        "Single stream, by kind of prompt",
        "Concurrency, in waves of c that start together",
        "Concurrency, with c always in flight (concurrency-closed)",
        "Cost",
        "Winners by regime",
        "Drift, boots and spread",
        "Losslessness",
        "Where protocols meet",
        "Caveats",
        "Verdicts",
        "Set-up",
        "Sources",
        "Goals",
        "How to reproduce",
    ]


def test_sections_stand_in_that_order_whatever_the_matrix_lists_first(run: Summary) -> None:
    turned = replace(run, sections=tuple(reversed(run.sections)))
    headings = re.findall(r"^## (.*)$", results_page(turned, ()), re.MULTILINE)

    assert headings.index("Single stream, by kind of prompt") == 1


def test_the_contents_lead_to_the_headings(page: str) -> None:
    (line,) = [line for line in page.splitlines() if line.startswith("[Method](#method)")]
    assert "[Single stream, by kind of prompt](#single-stream-by-kind-of-prompt)" in line
    assert (
        "[Concurrency, with c always in flight (concurrency-closed)]"
        "(#concurrency-with-c-always-in-flight-concurrency-closed)" in line
    )
    assert line.count("](#") == len(re.findall(r"^## ", page, re.MULTILINE))


# --- the first lines ------------------------------------------------------------------------------


def test_the_top_says_winners_goals_what_can_be_seen_and_what_is_doubtful(run: Summary) -> None:
    told = list(in_short(run))

    # six places of kinds, three levels of each load
    assert told[0].startswith("Winners: of 12 places (kinds of prompt, levels of c, lengths) ")
    # a plain step takes 11 ms alone and 1 ms more for each further stream, a round 18.5 ms and 9:
    # only alone do they decode 50 tok/s, one at a time and at c = 1 of both loads
    assert told[1] == "Goal: decode_rate of 50.00 tok/s, reached in 6 of 14 cells."
    assert told[2].startswith("What this design can see: differences from ")
    assert told[3].startswith("Doubts: no cell is void; ")
    assert told[4].startswith("This is a measurement")


def test_what_is_void_is_told_at_the_top(tmp_path: Path) -> None:
    def loop(request: Request) -> Request:
        is_drafted = not str(request.where.cell_id).startswith("plain")
        return replace(request, distinct_4gram_share=0.1) if is_drafted else request

    summary = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=()), edit=loop))
    doubts = next(line for line in in_short(summary) if line.startswith("Doubts"))

    assert doubts.startswith("Doubts: 1 of 2 cells void (loops); no cell is warned of; ")


def test_a_smoke_run_says_what_it_is_for(run: Summary) -> None:
    manifest = replace(run.manifest, purpose="smoke")
    smoke = replace(run, data=replace(run.data, manifest=manifest))

    assert list(in_short(smoke))[-1].startswith("This is a smoke run")


# --- goals ----------------------------------------------------------------------------------------


def test_a_goal_is_a_row_for_each_variant_with_its_worst_place(tmp_path: Path) -> None:
    """plain decodes 10 tok/s and DFlash2 40 in every cell; 20 are wanted."""
    asked = synthetic.matrix(boots=2, levels=(1,), prompts=cases_prompts(A="A"))
    asked = replace(asked, goals={"decode_rate": 20.0})
    rates = {"plain": 10.0, "DFlash2": 40.0}

    def edit(request: Request) -> Request:
        variant = "plain" if str(request.where.cell_id).startswith("plain") else "DFlash2"
        return at_rate(request, rates[variant], ttft_s=0.1)

    behaviours = {"DFlash2": replace(synthetic.DFLASH2, acceptance={"A": 0.7})}
    summary = summarise(synthetic.write_run(tmp_path, asked, behaviours=behaviours, edit=edit))
    (table,) = TABLES["goals"](summary)

    assert [[entry.text for entry in row] for row in table.rows] == [
        [
            "decode_rate",
            "20.00 tok/s",
            "plain",
            "0 of 3",
            "10.00",
            "generate",
            "generate; concurrency, c = 1; concurrency-closed, c = 1",
        ],
        ["decode_rate", "20.00 tok/s", "DFlash2", "3 of 3", "40.00", "generate", "–"],
    ]


# --- warnings -------------------------------------------------------------------------------------


def test_messages_that_differ_in_numbers_alone_are_one_with_their_range() -> None:
    told = [
        "A request took 7.1 % less in boot b6-s1 than in the first of 2 (version 0.1.0).",
        "A request took 27.6 % less in boot b6-s1 than in the first of 2 (version 0.1.0).",
        "A request took 17 % less in boot b6-s1 than in the first of 2 (version 0.1.0).",
    ]
    assert merged(told) == (
        "A request took 7.1 to 27.6 % less in boot b6-s1 than in the first of 2 (version 0.1.0)."
    )


def warned(run: Summary, *messages: str) -> Table:
    """The first table of one stream, its first cells accused of these by a check."""
    views = run.sections[0].views
    verdicts = tuple(
        Verdict(check="drift", level="warning", message=message, cell_id=view.cell.cell_id)
        for view, message in zip(views, messages, strict=True)
    )
    return TABLES["single_stream"](replace(run, verdicts=verdicts))[0]


def test_a_check_that_says_the_same_of_two_rows_says_it_once(run: Summary) -> None:
    table = warned(run, "It took 5 % less.", "It took 9 % less.")

    assert table.warnings == (
        Accusation(check="drift", whose="every row", message="It took 5 to 9 % less."),
    )


def test_a_check_that_says_two_things_says_each(run: Summary) -> None:
    table = warned(run, "It took 5 % less.", "It took 9 % more.")

    assert [each.whose for each in table.warnings] == ["plain", "DFlash2"]


def test_warnings_are_folded_on_the_page_and_whole_where_they_are_pasted(run: Summary) -> None:
    table = warned(run, "It took 5 % less.", "It took 9 % less.")
    links = Links([view.cell.cell_id for view in run.data.views])

    assert "<details><summary>⚠ 1 warning: drift</summary>" in markdown_table(table, links)
    pasted = markdown_table(table)
    assert "<details>" not in pasted
    assert "> ⚠ drift (every row): It took 5 to 9 % less." in pasted


def test_a_row_that_is_warned_of_as_a_whole_has_its_mark_at_its_name() -> None:
    def row(*marks: str) -> tuple[Entry, ...]:
        return (
            label("plain"),
            *(Entry(text="1", value=1.0, mark=mark, cell_id="cell") for mark in marks),
        )

    def shown(*marks: str) -> str:
        table = Table(name="t", title="T", columns=("variant", "a", "b"), rows=(row(*marks),))
        return markdown_table(table).splitlines()[2]

    assert shown("⚠", "⚠") == "| plain ⚠ | 1 | 1 |"
    assert shown("⚠", "") == "| plain | 1 ⚠ | 1 |"
    assert shown("✗", "✗") == "| plain | 1 ✗ | 1 ✗ |"


# --- length ---------------------------------------------------------------------------------------


def test_what_is_seen_without_opening_anything_is_short(page: str) -> None:
    """The further figures of each section, the rankings and the boots are folded away."""
    seen = visible(page)

    assert len(seen) < 0.55 * len(page)
    for title in ("**Occupancy", "**One stream: rates", "**Outputs**", "**Headline figure per b"):
        assert title in page
        assert title not in seen
    for title in ("**Decode rate, tok/s**", "**Speed-up over the reference", "**Winners by reg"):
        assert title in seen


def test_no_warning_is_told_twice_in_a_section(run: Summary) -> None:
    """It touches every table of it, and stands under the first."""
    verdicts = tuple(
        Verdict(check="drift", level="warning", message="It moved.", cell_id=view.cell.cell_id)
        for view in run.data.views
    )
    text = results_page(replace(run, verdicts=verdicts), ())
    told = [part.count("> ⚠ drift (every row): It moved.") for part in text.split("\n## ")]

    assert told.count(1) == len(run.sections) == 3
    assert max(told) == 1


# --- sentences ------------------------------------------------------------------------------------


def test_the_crossover_is_a_bracket_in_words(run: Summary) -> None:
    waves = next(section for section in run.sections if section.word == "concurrency")

    assert next(sentences.statements(run, waves)) == (
        "DFlash2 is clearly ahead of plain up to c = 1 and clearly behind from c = 16 on: the "
        "crossover lies between."
    )


def test_two_drafters_are_held_against_each_other_by_name(tmp_path: Path) -> None:
    """B's rounds take twice as long as A's, and both accept the same."""
    slow = replace(synthetic.DFLASH2, draft_ms=9.0, verify_ms=28.0)
    asked = synthetic.matrix(levels=(), boots=4, drafters=("A", "B"))
    behaviours = {"A": synthetic.DFLASH2, "B": slow}
    folder = synthetic.write_run(tmp_path, asked, behaviours=behaviours, boot_spread=0.001)
    summary = summarise(folder)
    told = next(sentences.statements(summary, summary.sections[0]))
    found = re.fullmatch(
        r"A decodes ([\d.]+)x as fast as B, the next drafter \(95 % interval .* over 4 boots\)\.",
        told,
    )

    assert found is not None
    # the drafters' luck differs by name, so their texts take rounds that differ a little
    assert float(found[1]) == pytest.approx(2.0, rel=0.15)


def test_acceptance_that_stays_is_one_sentence_for_all_drafters(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(5, 10), boots=2, drafters=("A", "B"))
    behaviours = {"A": synthetic.DFLASH2, "B": synthetic.DFLASH2}
    summary = summarise(synthetic.write_run(tmp_path, asked, behaviours=behaviours))
    waves = next(section for section in summary.sections if section.word == "concurrency")
    (told,) = sentences.decay(summary, waves)

    assert re.fullmatch(
        r"The acceptance length is the same from c = 5 to c = 10 \(2 times the batch\) for "
        r"A \(\d\.\d{3}\) and B \(\d\.\d{3}\)\.",
        told,
    )


def test_rows_with_other_weights_are_grouped_by_what_they_are(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(), boots=2, drafters=("A", "B"))
    other = Model(name="demo-4bit", path="models/4bit")
    plain, *drafted = asked.variants
    moved = tuple(replace(variant, target=other) for variant in drafted)
    behaviours = {"A": synthetic.DFLASH2, "B": synthetic.DFLASH2}
    folder = synthetic.write_run(
        tmp_path, replace(asked, variants=(plain, *moved)), behaviours=behaviours
    )
    (table,) = TABLES["single_stream"](summarise(folder))

    assert table.notes[0] == (
        "† other weights than the first row's (demo-dense): demo-4bit (A and B). What separates "
        "such a row is not the drafter alone."
    )
