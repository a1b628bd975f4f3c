"""The report's table of costs: where memory was read, and why a variant has less room."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.analysis.summary import Summary, summarise
from harness.records import Boot
from harness.report.tables import TABLES, Table

from . import synthetic

GIB = 2**30


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), synthetic.matrix(levels=()))
    return summarise(folder)


def cost(summary: Summary, edit: Callable[[Boot], Boot]) -> Table:
    boots = tuple(map(edit, summary.data.boots))
    (table,) = TABLES["cost"](replace(summary, data=replace(summary.data, boots=boots)))
    return table


def column(table: Table, name: str) -> list[str]:
    at = table.columns.index(name)
    return [row[at].text for row in table.rows]


def test_memory_says_where_it_was_read(run: Summary) -> None:
    on_gpu = cost(run, lambda boot: replace(boot, memory_read_from="accelerators"))
    on_cpu = cost(run, lambda boot: boot)

    assert "Memory: what accelerators hold beyond what they held before" in on_gpu.notes[0]
    assert "Memory: the resident set of the engine's processes" in on_cpu.notes[0]
    # 420 MiB against 380
    assert column(on_gpu, "peak memory of a boot, MiB") == ["380", "420 (+10.5 %)"]


def test_memory_of_two_places_is_never_held_against_each_other(run: Summary) -> None:
    def edit(boot: Boot) -> Boot:
        source = "host" if boot.variant == "DFlash2" else "resident set"
        return replace(boot, memory_read_from=source)  # type: ignore[arg-type]

    table = cost(run, edit)

    assert column(table, "peak memory of a boot, MiB") == ["380", "420"]
    assert "share; the resident set" in table.notes[0]


def test_the_published_costs_come_with_their_reason(run: Summary) -> None:
    """Room fell by 37 % while memory rose by 8 %, for the drafter's keys and values are a group of
    their own: 617 thousand tokens in a context of 131072 are 4.7 full requests.
    """

    def edit(boot: Boot) -> Boot:
        told = {"kv_tokens": 980_000, "full_length_requests": 7.5, "kv_groups": 1}
        if boot.variant == "DFlash2":
            told = {"kv_tokens": 617_000, "full_length_requests": 4.7, "kv_groups": 2}
        return replace(boot, health=told)

    table = cost(run, edit)

    assert column(table, "room, tokens")[1].endswith("(−37.0 %)")
    assert column(table, "full-length requests")[1].startswith("4.7")
    assert table.notes[1] == (
        "DFlash2 keeps 2 groups of keys and values where its reference keeps 1: the drafter's "
        "attention has its own, and every token takes more room."
    )
