"""The golden document: what follows from figures that two publications print, computed by our code.

Both give numbers without their rows. What can be derived from printed numbers is derived here, by
the functions that make our own tables; what cannot is quoted in results/published, as text.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from mypy import api as mypy

from harness import checks, measures, published
from harness.analysis import standings
from harness.analysis.standings import Decay
from harness.analysis.summary import Summary, summarise
from harness.measures import CountersDelta
from harness.plan import turns
from harness.records import Drafter, Matrix, Model, RepetitionEnd, Request, Snapshot
from harness.report import format as fmt
from harness.report.quoted import quoted_page
from harness.report.tables import TABLES, Table

from . import synthetic
from .cases.from_records import at_rate, prompts, timed_out

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


def delta(*, drafts: int, accepted: int, drafted: int, tested: int | None = None) -> CountersDelta:
    return CountersDelta(
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_at=None,
        tested_tokens=tested,
        trimmed_tokens=0,
        plain_steps=0,
        generation_tokens=None,
        prompt_tokens=None,
        requests=None,
    )


# --- acceptance and ceiling -----------------------------------------------------------------------


def test_7_97_of_8_is_the_share_of_the_ceiling_and_6_97_of_7_the_acceptance_rate() -> None:
    """Both print 99.6 %, and the study calls both by one name."""
    rounds = delta(drafts=100, accepted=697, drafted=700)
    length = measures.acceptance_length(rounds)

    assert length == pytest.approx(7.97)
    assert fmt.percent(measures.fraction_of_ceiling(length, 7) or 0) == "99.6 %"
    assert fmt.percent(measures.acceptance_rate(rounds) or 0) == "99.6 %"
    assert measures.fraction_of_ceiling(length, 7) != measures.acceptance_rate(rounds)


def test_10_42_of_15_is_69_5_percent_of_the_ceiling_and_67_3_percent_of_the_drafted_tokens() -> (
    None
):
    rounds = delta(drafts=100, accepted=942, drafted=1400)
    length = measures.acceptance_length(rounds)

    assert length == pytest.approx(10.42)
    assert fmt.percent(measures.fraction_of_ceiling(length, 14) or 0) == "69.5 %"
    assert fmt.percent(measures.acceptance_rate(rounds) or 0) == "67.3 %"
    assert fmt.percent(measures.acceptance_rate_of_length(10.42, 14)) == "67.3 %"


def test_97_6_percent_of_the_ceiling_are_7_81_tokens_a_round() -> None:
    rounds = delta(drafts=1000, accepted=6808, drafted=7000)
    length = measures.acceptance_length(rounds)

    assert fmt.percent(measures.fraction_of_ceiling(length, 7) or 0) == "97.6 %"
    assert fmt.length(length or 0) == "7.81"


def test_acceptance_from_4_589_to_4_272_is_a_loss_of_6_9_percent() -> None:
    decay = Decay(variant="DFlash 2", first_level=4, last_level=16, first=4.589, last=4.272)

    assert fmt.change(decay.change) == "−6.9 %"


# --- one request, counted in five ways ------------------------------------------------------------


def test_sixteen_tokens_are_one_request_five_rounds_and_ten_accepted() -> None:
    rounds = delta(drafts=5, accepted=10, drafted=35, tested=13)

    assert measures.token_identity_residual(rounds, tokens=16, requests=1) == 0
    assert measures.acceptance_length(rounds) == 3.0
    assert measures.accepted_of_tested(rounds) == pytest.approx(10 / 13)
    assert fmt.percent(measures.accepted_of_tested(rounds) or 0) == "76.9 %"
    assert fmt.percent(measures.acceptance_rate(rounds) or 0) == "28.6 %"


def test_decoding_at_14_6172_tokens_a_second_leaves_38_ms_that_are_no_round() -> None:
    """Draft and verification took 200.095 + 788.161 ms. By 15 tokens of 16 there are 1026.2 ms, by
    all 16 there are 1094.6: a rate must say which it counts.
    """
    rounds_ms = 200.095 + 788.161
    strict = measures.decode_rate_strict(16, 1, 0.5, 0.5 + 15 / 14.6172)
    headline = measures.decode_rate(16, 1, 0.5, 0.5 + 16 / 14.6172, 0.5 + 16 / 14.6172)

    assert strict == pytest.approx(14.6172)
    assert headline == pytest.approx(14.6172)
    assert rounds_ms == pytest.approx(988.256)
    assert 15 / 14.6172 * 1e3 - rounds_ms == pytest.approx(37.93, abs=0.01)
    assert 16 / 14.6172 * 1e3 - rounds_ms == pytest.approx(106.34, abs=0.01)


# --- room, scaling, ratios ------------------------------------------------------------------------


def test_room_for_617000_tokens_holds_4_71_requests_of_128_ki() -> None:
    assert fmt.length(measures.full_length_requests(617_000, 131_072)) == "4.71"


def test_the_selection_kernel_became_224_7_times_as_fast() -> None:
    assert 1 + measures.relative_change(663.126584, 2.950625) == pytest.approx(224.7, abs=0.05)


def study(
    path: Path,
    rates: Mapping[str, Mapping[str, float]],
    *,
    boots: int = 4,
    edit: Callable[[Request], Request] = lambda request: request,
) -> Summary:
    """Variants (the first one plain) whose prompts decode at these rates, boots 0.1 % apart."""
    names = list(rates)
    kinds = list(rates[names[0]])
    asked = synthetic.matrix(
        boots=boots,
        levels=(),
        drafters=names[1:],
        prompts=prompts(**{kind: kind for kind in kinds}),
        repetitions=1,
    )
    first, *others = asked.variants
    asked = replace(asked, variants=(replace(first, name=names[0]), *others))
    jitter = random.Random(1)

    def at(request: Request) -> Request:
        variant = next(name for name in names if _is_of(request, name, asked))
        rate = rates[variant][request.prompt_id] * jitter.uniform(0.999, 1.001)
        return edit(at_rate(request, rate))

    behaviours = dict.fromkeys(names[1:], drafting(*kinds))
    return summarise(
        synthetic.write_run(
            path, asked, behaviours={names[0]: synthetic.PLAIN, **behaviours}, edit=at
        )
    )


def _is_of(record: Request | Snapshot, variant: str, asked: Matrix) -> bool:
    order = turns([each.name for each in asked.variants], asked.schedule)
    return order[int(str(record.where.block_id).removeprefix("b")) - 1] == variant


@pytest.fixture(scope="module")
def single_stream(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Fresh generation and chat of the study, where it prints both sides of a ratio."""
    return study(
        tmp_path_factory.mktemp("study"),
        {
            "FP8": {"fresh": 7.94, "chat": 7.94},
            "DSpark k=7": {"fresh": 20.05, "chat": 12.56},
            "MTP k=3": {"fresh": 18.00, "chat": 14.50},
            "DFlash 2": {"fresh": 29.86, "chat": 17.74},
        },
    )


def drafting(*kinds: str) -> synthetic.Behaviour:
    """What a drafter gets accepted of such prompts: its counters must move, times are edited."""
    return replace(synthetic.DFLASH2, acceptance=dict.fromkeys(kinds, 0.5))


def level_of(record: Request | RepetitionEnd) -> int:
    found = re.search(r"-c(\d+)-", str(record.where.cell_id))
    assert found is not None
    return int(found[1])


def table(summary: Summary, row: str, number: int = 0) -> Table:
    return TABLES[row](summary)[number]


def test_dflash_2_is_48_9_percent_ahead_of_the_next_on_fresh_generation(
    single_stream: Summary,
) -> None:
    """29.86 over 20.05; MTP's 18.00 there is made up, so that there are three."""
    rows = table(single_stream, "winners").rows
    (fresh,) = [row for row in rows if row[1].text == "fresh"]

    assert (fresh[2].text, fresh[4].text) == ("DFlash 2", "DSpark k=7")
    assert isinstance(fresh[5].value, float)
    assert fresh[5].value == pytest.approx(0.489, abs=0.003)


def test_on_chat_the_order_of_two_drafters_flips(single_stream: Summary) -> None:
    """14.50 over 12.56 is 1.1545, where over fresh generation the other one leads."""
    (section,) = single_stream.sections
    flips = {
        (flip.behind, flip.ahead, flip.place.kind): flip
        for flip in standings.flips(single_stream, section)
    }
    chat = flips[("MTP k=3", "DSpark k=7", "chat")]

    assert chat.decided
    assert chat.at_place.value == pytest.approx(14.50 / 12.56, rel=0.002)
    assert chat.at_place.value - 1 == pytest.approx(0.155, abs=0.003)


def test_ratios_that_the_study_prints_follow_from_their_two_sides() -> None:
    printed = {
        (29.86, 20.05): "+48.9 %",
        (34.68, 28.85): "+20.2 %",
        (33.29, 37.58): "−11.4 %",
        (7.94, 7.88): "+0.8 %",
        (14.50, 12.56): "+15.4 %",
        (4.272, 4.589): "−6.9 %",
    }

    assert {pair: fmt.change(measures.relative_change(*pair)) for pair in printed} == printed
    assert measures.relative_change(7.94, 7.88) == pytest.approx(0.0076, abs=5e-5)


def test_a_depth_of_five_is_11_4_percent_behind_a_depth_of_seven(tmp_path: Path) -> None:
    asked_rates = {"plain": {"p": 10.0}, "k5": {"p": 33.29}, "k7": {"p": 37.58}}
    summary = swept(tmp_path, asked_rates, depths={"k5": 5, "k7": 7})
    rows = table(summary, "depth").rows

    assert [(row[0].text, row[1].text) for row in rows] == [("k5", "5"), ("k7", "7")]
    assert isinstance(rows[0][3].value, float)
    assert rows[0][3].value == pytest.approx(-0.114, abs=0.003)
    assert rows[1][3].value == 0


def swept(
    path: Path, rates: Mapping[str, Mapping[str, float]], depths: Mapping[str, int]
) -> Summary:
    names = list(rates)
    asked = synthetic.matrix(
        boots=4, levels=(), drafters=names[1:], prompts=prompts(p="p"), repetitions=1
    )
    model = Model(name="demo-dflash2", path="drafter")
    variants = tuple(
        replace(each, drafter=Drafter(method="dflash2", model=model, k=depths[each.name]))
        if each.name in depths
        else each
        for each in asked.variants
    )
    asked = replace(asked, variants=variants)
    jitter = random.Random(2)

    def at(request: Request) -> Request:
        variant = next(name for name in names if _is_of(request, name, asked))
        return at_rate(request, rates[variant]["p"] * jitter.uniform(0.999, 1.001))

    behaviours = dict.fromkeys(names[1:], drafting("p"))

    def shallow(snapshot: Snapshot) -> Snapshot:
        """The model engine drafts seven tokens a round, whatever k is."""
        variant = next(name for name in names if _is_of(snapshot, name, asked))
        counters = snapshot.counters
        if variant not in depths or counters is None or counters.drafts is None:
            return snapshot
        drafted = counters.drafts * depths[variant]
        told = replace(counters, draft_tokens=drafted, accepted_at=None)
        return replace(snapshot, counters=told)

    folder = synthetic.write_run(path, asked, behaviours=behaviours, edit=at, edit_snapshot=shallow)
    return summarise(folder)


def test_13_6_times_over_sixteen_is_85_percent_and_2_13_times_13_percent(tmp_path: Path) -> None:
    """Aggregates of the study at c = 1 and 16: 55.85 and 119.16; 13.6x is the plain curve's."""
    for alone, at_16, scaling, efficiency in (
        (55.85, 119.16, "2.13x", "13.3 %"),
        (10.0, 136.0, "13.6x", "85.0 %"),
    ):
        summary = summarise(waves(tmp_path / scaling, {1: alone, 16: at_16}))
        rows = {entry.name: entry.rows for entry in TABLES["concurrency"](summary)}
        (row,) = rows["concurrency_scaling"]

        assert row[2].text == f"{scaling} ({efficiency})"


def waves(path: Path, aggregates: Mapping[int, float]) -> synthetic.RunFolder:
    """One plain variant whose waves of c have these aggregates."""
    asked = synthetic.matrix(
        boots=1, levels=tuple(aggregates), drafters=(), prompts=prompts(p="p"), repetitions=1
    )
    asked = replace(asked, workloads=tuple(w for w in asked.workloads if w.load == "wave"))

    def edit_end(end: RepetitionEnd) -> RepetitionEnd:
        level = level_of(end)
        return replace(end, window_s=96 * level / aggregates[level])

    return synthetic.write_run(path, asked, edit_end=edit_end)


# --- comparisons that are none --------------------------------------------------------------------


def test_sixteen_tokens_against_thirty_two_are_no_controlled_comparison(tmp_path: Path) -> None:
    def shorter(request: Request) -> Request:
        is_plain = request.where.block_id in ("b1", "b4")
        return at_rate(request, 25.86 if is_plain else 14.6172, tokens=32 if is_plain else 16)

    asked = synthetic.matrix(boots=2, levels=(), prompts=prompts(p="p"), repetitions=1)
    summary = summarise(synthetic.write_run(tmp_path, asked, edit=shorter))
    (verdict,) = [
        each for each in summary.verdicts if each.check == "lengths_equal" and each.level != "ok"
    ]

    assert verdict.level == "invalid"
    assert "16 against 32 tokens" in verdict.message
    assert "No controlled comparison" in verdict.message
    assert checks.worst(summary.verdicts) == "invalid"


def test_a_failed_request_wins_nothing(tmp_path: Path) -> None:
    summary = study(
        tmp_path,
        {"plain": {"p": 10.0}, "one": {"p": 20.0}, "two": {"p": 30.0}},
        edit=lambda request: (
            timed_out(request) if request.wall_s and request.wall_s < 4 else request
        ),
    )
    winners = {entry.text for row in table(summary, "winners").rows for entry in row[2:3]}

    assert winners == {"one"}


# --- quoted ---------------------------------------------------------------------------------------


def test_quoted_figures_are_text_without_raw_values() -> None:
    documents = published.documents(PUBLISHED.parent)
    printed = {figure.printed for document in documents.values() for figure in document.figures}

    assert {"falls 37%", "falls only 8%", "13.6x", "at c=2", "loses by 21%"} <= printed
    for document in documents.values():
        assert {figure.raw for figure in document.figures} == {None}


def test_the_page_of_quoted_figures_is_made_of_their_files() -> None:
    page = (PUBLISHED / "README.md").read_text(encoding="utf-8")

    assert page == quoted_page(published.documents(PUBLISHED.parent))


def test_a_quoted_figure_with_a_raw_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(
        '{"title": "t", "remark": "r", "figures": [{"section": "1", "subject": "s", "what": "w",'
        ' "printed": "2x", "raw": [1.0]}]}',
        encoding="utf-8",
    )

    with pytest.raises(published.ResultsError, match="raw: null"):
        published.load(path)


def test_nothing_computes_with_a_quoted_figure() -> None:
    document = next(iter(published.documents(PUBLISHED.parent).values()))

    with pytest.raises(TypeError):
        document.figures[0] / 2.0  # type: ignore[operator]


@pytest.mark.slow
def test_comparing_a_quoted_figure_is_a_type_error() -> None:
    program = (
        "from harness.compare.compare import compare\n"
        "from harness.compare.rules import Rules\n"
        "from harness.records import QuotedFigure\n"
        "def f(quoted: QuotedFigure, rules: Rules) -> None:\n"
        "    compare(quoted, [quoted], baseline='study', rules=rules)\n"
    )
    told, _, status = mypy.run(["--config-file=", "--strict", "-c", program])

    assert status == 1
    assert 'incompatible type "QuotedFigure"; expected "Night"' in told


# --- a crossover, on made-up curves ---------------------------------------------------------------


def test_the_crossover_of_made_up_curves_lies_between_two_balanced_levels(tmp_path: Path) -> None:
    """Made up: A 30, 40, 60, 80 and B 20, 50, 90, 160 tok/s at c = 1, 2, 4, 8, with four prompts
    from the first on in every wave, so that c = 1 and 2 serve another mix than the others. B is
    ahead at c = 2, but such a level ends no bracket: what is certain is that B leads from 4 on.
    """
    curves = {"A": {1: 30.0, 2: 40.0, 4: 60.0, 8: 80.0}, "B": {1: 20.0, 2: 50.0, 4: 90.0, 8: 160.0}}
    summary = made_up_curves(tmp_path, curves, assignment="round-robin")
    (crossing,) = summary.crossings["concurrency"]

    assert crossing.excluded == (1, 2)
    assert (crossing.bracket.last_ahead, crossing.bracket.first_behind) == (None, 4)


def test_the_crossover_of_balanced_made_up_curves_is_a_bracket(tmp_path: Path) -> None:
    curves = {"A": {1: 30.0, 2: 40.0, 4: 60.0, 8: 80.0}, "B": {1: 20.0, 2: 39.9, 4: 90.0, 8: 160.0}}
    summary = made_up_curves(tmp_path, curves, assignment="balanced")
    (crossing,) = summary.crossings["concurrency"]

    assert crossing.excluded == ()
    assert (crossing.leader, crossing.other) == ("A", "B")
    assert (crossing.bracket.last_ahead, crossing.bracket.first_behind) == (1, 4)


def made_up_curves(
    path: Path, curves: Mapping[str, Mapping[int, float]], *, assignment: str
) -> Summary:
    names, levels = list(curves), tuple(next(iter(curves.values())))
    asked = synthetic.matrix(
        boots=4,
        levels=levels,
        drafters=names[1:],
        prompts=prompts(a="a", b="b", c="c", d="d"),
        repetitions=1,
    )
    waves_only = tuple(
        replace(each, assignment=assignment)  # type: ignore[arg-type]
        for each in asked.workloads
        if each.load == "wave"
    )
    first, *others = asked.variants
    asked = replace(asked, workloads=waves_only, variants=(replace(first, name=names[0]), *others))
    jitter = random.Random(3)
    slowness: dict[tuple[str, str], float] = {}

    def edit_end(end: RepetitionEnd) -> RepetitionEnd:
        cell, boot = str(end.where.cell_id), str(end.where.boot_id)
        level = level_of(end)
        variant = next(name for name in names if cell.startswith(f"{name.lower()}-"))
        factor = slowness.setdefault((cell, boot), jitter.uniform(0.995, 1.005))
        return replace(end, window_s=96 * level / (curves[variant][level] * factor))

    behaviours = {names[0]: synthetic.PLAIN, **dict.fromkeys(names[1:], drafting(*"abcd"))}
    return summarise(synthetic.write_run(path, asked, behaviours=behaviours, edit_end=edit_end))
