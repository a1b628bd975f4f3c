"""A run of several sessions: which rows are of another one, on which machine each ran, and what a
control says of it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary, summarise
from harness.records import Schedule
from harness.report.page import results_page
from harness.report.tables import TABLES, Table
from harness.store import RunFolder

from . import synthetic

Line = dict[str, Any]


def rewritten(path: Path, change: Callable[[Line], Line]) -> None:
    lines = [change(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def two_sessions(
    folder: Path,
    blocks: set[str],
    *,
    slower: float = 1.0,
    host: str = "c0ffee",
    device: str = "dddddddddddd",
) -> None:
    """As if these blocks had been measured in a second session, everything there slower by so
    much, on a machine of this name and kind.
    """

    def later(line: Line) -> Line:
        if line["where"].get("block_id") not in blocks:
            return line
        where = {**line["where"], "session_id": "s2"}
        times = {
            name: line[name] * slower
            for name in ("wall_s", "window_s", "ttft_s", "t_last_s", "ttfr_s", "ttfa_s")
            if line.get(name) is not None
        }
        return {**line, **times, "where": where}

    for name in ("boots", "requests", "counters", "repetitions", "ends", "cells"):
        rewritten(folder / f"{name}.jsonl", later)
    sessions = folder / "sessions.jsonl"
    first = json.loads(sessions.read_text(encoding="utf-8"))
    second = {
        **first,
        "where": {**first["where"], "session_id": "s2"},
        "started_at": "2026-12-01T12:00:00Z",
        "device_key": device,
        "machine": {**first["machine"], "hostname_hash": host},
    }
    sessions.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n", encoding="utf-8")


def measured(path: Path, **later: Any) -> Summary:
    """Plain in the first session; DFlash2, and plain as a control, in the second. In running order:
    the control, plain, DFlash2, DFlash2, plain, the control.
    """
    asked = replace(synthetic.matrix(levels=()), schedule=Schedule(boots=2, control="plain"))
    folder = synthetic.write_run(path, asked, boot_spread=0.0)
    two_sessions(folder.path, {"b1", "b3", "b4", "b6"}, **later)
    return summarise(RunFolder.open(folder.path))


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return measured(tmp_path_factory.mktemp("alike"))


def sessions_of(summary: Summary) -> Table:
    (table,) = TABLES["sessions"](summary)
    return table


def test_a_variant_of_a_later_session_is_marked_and_its_session_named(alike: Summary) -> None:
    (table,) = TABLES["single_stream"](alike)

    assert [row[0].mark for row in table.rows] == ["", "‡"]
    assert table.notes[0] == (
        "‡ measured in another session than the first row's (s1): s2 (DFlash2). What a control "
        "says of them stands under Sessions and machines."
    )


def test_a_row_may_have_other_weights_and_another_session(alike: Summary) -> None:
    from harness.report.tables.figures import variant_label

    (section,) = alike.sections
    plain, drafted = section.views
    moved = replace(drafted, cell=replace(drafted.cell, target="demo-4bit"))

    assert variant_label(replace(section, views=(plain, moved)), "DFlash2").mark == "† ‡"


def test_each_session_has_its_machine_and_its_cells(alike: Summary) -> None:
    table = sessions_of(alike)

    assert [[entry.text for entry in row[:4]] for row in table.rows] == [
        ["s1", "2026-11-29T12:00:00Z", "1: Some CPU @ 2.4 GHz, 2 CPUs, 24 GiB", "plain: generate"],
        [
            "s2",
            "2026-12-01T12:00:00Z",
            "1: Some CPU @ 2.4 GHz, 2 CPUs, 24 GiB",
            "DFlash2: generate",
        ],
    ]


def test_a_control_within_its_tolerance_is_told_with_both(alike: Summary) -> None:
    assert re.fullmatch(
        r"In s2 the control, plain in generate, took 0\.[01] % (longer|less) than what it repeats "
        r"took before \(tolerance 5\.0 %\): rows of both may stand in one table\.",
        sessions_of(alike).notes[0],
    )


def test_a_control_beyond_its_tolerance_says_that_the_rows_are_not_comparable(
    tmp_path: Path,
) -> None:
    (note,) = sessions_of(measured(tmp_path, slower=1.08)).notes

    assert re.match(r"In s2 the control, plain in generate, took (7\.9|8\.[01]) % longer ", note)
    assert note.endswith("so the rows of s2 are not comparable with those before.")


def test_a_session_without_a_control_says_so(tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=()), boot_spread=0.0)
    two_sessions(folder.path, {"b2", "b3"})
    table = sessions_of(summarise(RunFolder.open(folder.path)))

    assert table.notes[0].startswith("No control was measured in s2: nothing tells whether")
    assert {row[-1].reason for row in table.rows} == {"no control was measured there and elsewhere"}


def test_two_machines_are_told_apart_though_they_are_of_one_kind(tmp_path: Path) -> None:
    table = sessions_of(measured(tmp_path, host="decaf"))

    assert [row[2].text[:2] for row in table.rows] == ["1:", "2:"]
    assert "two of one kind are two machines" in table.notes[-1]


def test_the_page_has_them_under_a_heading_of_their_own(alike: Summary) -> None:
    page = results_page(alike, ())

    assert "## Sessions and machines" in page
    assert "| DFlash2 ‡" in page


def test_a_run_of_one_session_has_no_such_table(tmp_path: Path) -> None:
    summary = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=1)))

    assert TABLES["sessions"](summary) == []
    assert "## Sessions and machines" not in results_page(summary, ())


def test_a_control_at_both_ends_of_one_session_is_told_though_it_is_fine(tmp_path: Path) -> None:
    asked = replace(synthetic.matrix(levels=()), schedule=Schedule(boots=2, control="plain"))
    summary = summarise(synthetic.write_run(tmp_path, asked, boot_spread=0.0))

    assert re.search(
        r"The control of s1 was measured first and last: plain in generate took 0(\.\d)? % "
        r"(longer|less) at the end, within the tolerance of 5\.0 %\.",
        results_page(summary, ()),
    )


# --- unlike machines ------------------------------------------------------------------------------


def test_what_ran_on_unlike_machines_shares_no_table_and_no_ranking(tmp_path: Path) -> None:
    """Four variants on two boxes: each box has a section, with its own rows, winners and ratios."""
    asked = synthetic.matrix(levels=(), boots=2, drafters=("A", "B", "C"))
    behaviours = dict.fromkeys(("A", "B", "C"), synthetic.DFLASH2)
    folder = synthetic.write_run(tmp_path, asked, behaviours=behaviours)
    # in running order: plain, A, B, C, C, B, A, plain
    two_sessions(folder.path, {"b3", "b4", "b5", "b6"}, host="decaf", device="eeeeeeeeeeee")
    summary = summarise(RunFolder.open(folder.path))

    assert [(each.word, each.variants) for each in summary.sections] == [
        ("generate:dddddddddddd", ("plain", "A")),
        ("generate:eeeeeeeeeeee", ("B", "C")),
    ]
    for table in (*TABLES["winners"](summary), *TABLES["ratios_by_place"](summary)):
        for row in table.rows:
            told = " ".join(entry.text for entry in row)
            assert not ({"plain", "A"} & set(told.split()) and {"B", "C"} & set(told.split()))


def test_a_cell_that_was_not_measured_stays_with_the_others_of_its_machine(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(), boots=2)
    folder = synthetic.write_run(tmp_path, asked, broken_variant="DFlash2")

    assert [section.word for section in summarise(folder).sections] == ["generate"]
