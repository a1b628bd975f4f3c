"""Every line of the published document, from a made-up run that calls for it."""

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import caveats
from harness.analysis.summary import Section, Summary, summarise
from harness.records import (
    AcceleratorSample,
    Drafter,
    MachineSample,
    MetricRow,
    Request,
    Where,
    Workload,
)
from harness.report import sentences
from harness.report.page import results_page
from harness.report.tables import TABLES, Table
from harness.report.tables.steadiness import moved
from harness.store import RunFolder

from . import synthetic
from .cases.from_records import at_rate, prompts


def section_of(summary: Summary, word: str) -> Section:
    (found,) = [section for section in summary.sections if section.word == word]
    return found


def tables_of(summary: Summary, row: str) -> dict[str, Table]:
    return {table.name: table for table in TABLES[row](summary)}


# --- one stream -----------------------------------------------------------------------------------

RATES: Mapping[str, Mapping[str, float]] = {
    "plain": {"fresh": 8.0, "chat": 8.0},
    "deep": {"fresh": 25.0, "chat": 12.56},
    "shallow": {"fresh": 18.0, "chat": 14.5},
    "twin": {"fresh": 18.0, "chat": 14.5},
}


def to_rates(seed: int) -> Callable[[Request], Request]:
    """Each variant decodes each kind at its rate, within a thousandth."""
    jitter = random.Random(seed)

    def edit(request: Request) -> Request:
        variant = str(request.where.cell_id).partition("-")[0]
        rate = RATES[variant][request.kind] * jitter.uniform(0.999, 1.001)
        return at_rate(request, rate)

    return edit


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    names = [name for name in RATES if name != "plain"]
    asked = synthetic.matrix(
        boots=4,
        levels=(),
        drafters=names,
        prompts=prompts(fresh="fresh", chat="chat"),
        repetitions=1,
    )
    half = replace(synthetic.DFLASH2, acceptance={"fresh": 0.5, "chat": 0.5})
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("single"),
        asked,
        behaviours=dict.fromkeys(names, half),
        edit=to_rates(3),
    )
    return summarise(folder)


def test_an_order_that_flips_on_a_kind_is_named_with_both_ratios(single: Summary) -> None:
    """14.5 / 12.56 is 1.154; over both kinds (25 + 12.56) / (18 + 14.5) is 1.156."""
    told = list(sentences.order(single, section_of(single, "generate")))

    assert re.fullmatch(
        r"The order flips on chat: shallow is ahead of deep there \(1\.1[56]x\), and behind it "
        r"over all kinds \(deep 1\.1[56]x\)\.",
        told[0],
    )


def test_any_two_drafters_have_a_ratio_and_a_ranking(single: Summary) -> None:
    """25 / 18 is 1.389."""
    ratios = tables_of(single, "ratios_by_place")["generate_ratios_by_kind"]
    (pair,) = [row for row in ratios.rows if (row[0].text, row[1].text) == ("deep", "shallow")]
    fresh = ratios.columns.index("fresh")

    assert isinstance(pair[fresh].value, float)
    assert pair[fresh].value == pytest.approx(25 / 18, rel=0.002)
    ranking = tables_of(single, "rankings")["generate_ranking"]
    by_kind = {row[0].text: [entry.value for entry in row[1:]] for row in ranking.rows}
    assert by_kind["fresh"][0] == "deep"
    assert {*by_kind["chat"][:2]} == {"shallow", "twin"}
    assert by_kind["chat"][2:] == ["deep", "plain"]


def test_winners_that_cannot_be_told_apart_are_a_tie(single: Summary) -> None:
    (table,) = TABLES["winners"](single)
    by_place = {row[1].text: row for row in table.rows}

    assert by_place["fresh"][2].text == "deep"
    assert re.fullmatch(r"tie: (shallow and twin|twin and shallow)", by_place["chat"][2].text)
    assert by_place["chat"][4].text == "deep"


def test_a_drafter_at_its_ceiling_is_called_saturated(tmp_path: Path) -> None:
    """Of drafts that are all accepted a round emits 8 of 8."""
    sure = replace(synthetic.DFLASH2, acceptance=dict.fromkeys(synthetic.KINDS, 1.0))
    folder = synthetic.write_run(
        tmp_path, synthetic.matrix(levels=(), boots=2), behaviours={"DFlash2": sure}
    )
    summary = summarise(folder)

    assert list(sentences.saturation(summary, section_of(summary, "generate"))) == [
        "DFlash2 is saturated: it reaches 100 % of its ceiling of 8 tokens a round. Only a larger "
        "block would help."
    ]


def test_plain_decoding_says_how_far_the_machine_moved(single: Summary) -> None:
    (told,) = moved(single)

    assert re.fullmatch(
        r"From its first boot to its last, plain decoding changed by (\+|−)?0\.\d % "
        r"\(plain, generate\) to (\+|−)?0\.\d % \(plain, generate\)\.",
        told,
    )


# --- under load -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Five prompts in waves that begin at the first one: of one and of two they are unbalanced."""
    asked = synthetic.matrix(boots=2, levels=(1, 2, 5, 20))
    waves = [each for each in asked.workloads if each.load == "wave"]
    asked = replace(
        asked, workloads=tuple(replace(each, assignment="round-robin") for each in waves)
    )
    folder = synthetic.write_run(tmp_path_factory.mktemp("load"), asked, boot_spread=0.002)
    return summarise(folder)


def test_levels_of_an_unbalanced_mix_cannot_end_the_bracket(load: Summary) -> None:
    told = next(sentences.crossovers(load, section_of(load, "concurrency")))

    assert told == (
        "DFlash2 is clearly behind plain from c = 5 on. Levels c = 1 and 2 cannot decide "
        "(unbalanced mix or invalid)."
    )


def test_an_unbalanced_level_is_marked_in_rankings_and_winners(load: Summary) -> None:
    (winners,) = TABLES["winners"](load)

    assert [row[1].text for row in winners.rows] == [
        "c = 1 (unbalanced mix)",
        "c = 2 (unbalanced mix)",
        "c = 5",
        "c = 20",
    ]


def test_a_pair_that_flips_at_several_levels_is_one_sentence(
    tmp_path: Path,
) -> None:
    """The drafter's rounds slow down by 9 ms with each further stream, plain steps by 1."""
    asked = synthetic.matrix(boots=4, levels=(1, 10, 20))
    waves = tuple(each for each in asked.workloads if each.load == "wave")
    folder = synthetic.write_run(tmp_path, replace(asked, workloads=waves), boot_spread=0.002)
    summary = summarise(folder)
    (told,) = sentences.order(summary, section_of(summary, "concurrency"))

    assert re.fullmatch(
        r"The order flips at c = 10 and 20: plain is ahead of DFlash2 there \(\d\.\d\dx and "
        r"\d\.\d\dx\), and behind it at c = 1 \(DFlash2 \d\.\d\dx\)\.",
        told,
    )


def test_acceptance_decays_over_the_balanced_part_alone(load: Summary) -> None:
    """From 4.589 to 4.272 are 6.9 % less, as the study prints it; c = 1 and 2 are left out."""
    lengths = {1: 9.0, 2: 9.0, 5: 4.589, 20: 4.272}

    def told(row: MetricRow) -> MetricRow:
        if row.metric != "acceptance_length" or row.variant == "plain":
            return row
        return replace(row, estimate=replace(row.estimate, value=lengths[row.concurrency]))

    decayed = replace(load, rows=tuple(map(told, load.rows)))

    assert list(sentences.decay(decayed, section_of(decayed, "concurrency"))) == [
        "The acceptance length of DFlash2 changes by −6.9 % from c = 5 to c = 20 (4 times the "
        "batch): 4.589 to 4.272."
    ]


# --- checkpoints, memory, power -------------------------------------------------------------------


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A target of 10 MiB of layers and 1 MiB of quantised head, on a device of 2 GB/s at 100 W."""
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("facts"), synthetic.matrix(levels=(), boots=2, repetitions=1)
    )
    path = folder.path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["device"] = {"memory_bandwidth_GBps": 2}
    manifest["models"]["demo-dense"]["weights"] = {
        "bytes": {"layers": 10 * 2**20, "head": 2**20},
        "head": {"lm_head.weight": "F8_E4M3"},
    }
    path.write_text(json.dumps(manifest), encoding="utf-8")
    again = RunFolder.open(folder.path)
    power = AcceleratorSample(
        clock_mhz=None, power_w=100.0, temperature_c=None, memory_used_bytes=None, slowed_by=()
    )
    again.append(
        *(
            MachineSample(
                where=Where(run_id=folder.manifest.run_id, session_id="s1", boot_id=boot_id),
                at="2026-11-29T12:00:00Z",
                host_cpu_share=None,
                memory_available_bytes=None,
                client_rss_bytes=None,
                engine_rss_bytes=None,
                accelerators=(power,),
            )
            for boot_id in ("b1-s1", "b2-s1", "b3-s1", "b4-s1")
        )
    )
    again.close()
    return summarise(RunFolder.open(folder.path))


def test_the_roof_is_told_where_the_bandwidth_is_known(facts: Summary) -> None:
    """11 MiB a step at about 91 steps a second are 1.05 of 2 GB/s."""
    (table,) = TABLES["roof"](facts)
    plain = table.rows[0]

    assert table.title == "Share of 2 GB/s that reading the target's weights uses"
    assert plain[2].text == "11"
    assert isinstance(plain[3].value, float)
    assert plain[3].value == pytest.approx(11 * 2**20 * (1000 / 11) / 2e9, rel=0.03)
    assert "## Roof" in results_page(facts, ())


def test_energy_is_told_where_an_accelerator_tells_its_power(facts: Summary) -> None:
    """100 W at about 91 tokens a second are about 1.1 J a token, and what the first token took."""
    (table,) = TABLES["energy"](facts)
    (row,) = [row for row in table.rows if row[2].text == "plain"]

    assert isinstance(row[3].value, float)
    assert row[3].value == pytest.approx(100 * 0.011, rel=0.03)


def test_a_quantised_head_is_a_caveat_of_all_rows_of_its_target(facts: Summary) -> None:
    (found,) = [each for each in caveats.caveats(facts) if each.rule == "quantised_head"]

    assert "The LM head of demo-dense is quantised (F8_E4M3)" in found.text
    assert len(found.cell_ids) == 2


# --- two protocols, two depths --------------------------------------------------------------------


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """One stream balanced and round-robin, and prefill, with drafters of k = 7 and k = 3."""
    asked = synthetic.matrix(levels=(), boots=2, drafters=("deep", "shallow"), repetitions=1)
    plain, deep, shallow = asked.variants
    shallow = replace(shallow, drafter=Drafter(method="mtp", k=3), flags={})
    (generate,) = asked.workloads
    prefill = Workload(
        kind="prefill",
        prompts=generate.prompts,
        warmup=generate.warmup,
        repetitions=1,
        max_tokens=1,
    )
    asked = replace(
        asked,
        variants=(plain, deep, shallow),
        workloads=(generate, replace(generate, assignment="round-robin"), prefill),
    )
    behaviours = dict.fromkeys(("deep", "shallow"), synthetic.DFLASH2)
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("protocols"),
        asked,
        behaviours=behaviours,
        edit_snapshot=lambda snapshot: replace(snapshot, counters=None),
    )
    return summarise(folder)


def test_two_protocols_of_a_workload_meet_in_a_table_of_their_own(protocols: Summary) -> None:
    (table,) = TABLES["overlap"](protocols)

    assert [row[0].text for row in table.rows] == ["plain", "deep", "shallow"]
    assert {row[1].text for row in table.rows}.isdisjoint({row[3].text for row in table.rows})
    rules = [caveat.rule for caveat in caveats.caveats(protocols)]
    assert rules.count("other_protocol") == 1


def test_prefill_taken_at_two_depths_is_a_caveat_that_names_its_rows(protocols: Summary) -> None:
    (found,) = [
        each for each in caveats.caveats(protocols) if each.rule == "prefill_at_another_depth"
    ]

    assert "(deep k = 7, shallow k = 3)" in found.text
    assert len(found.cell_ids) == 2
    (table,) = TABLES["caveats"](protocols)
    (row,) = [row for row in table.rows if row[0].text == "prefill_at_another_depth"]
    assert row[2].text == "deep: prefill; shallow: prefill"
