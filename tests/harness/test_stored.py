"""Large files read in one pass: the same records as if all were held, whatever the order of lines,
and never all of them at once.
"""

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import parallel, stored
from harness.analysis.summary import summarise
from harness.errors import ResultsError
from harness.records import Request, Snapshot, Where
from harness.requests import COUNTS, RATES, SECONDS, Requests, middle
from harness.store import RunFolder
from harness.stored import StoredRecords, StoredRequests

from . import synthetic


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests each, all read here."""
    monkeypatch.setattr(stored, "RANGE_BYTES", 3_000)
    monkeypatch.setattr(parallel, "MOST_PROCESSES", 1)


def small_run(results: Path, repetitions: int = 3) -> RunFolder:
    asked = synthetic.matrix(
        levels=(2,),
        boots=2,
        repetitions=repetitions,
        prompts=synthetic.prompt_set(("code", "edit")),
    )
    return synthetic.write_run(results, asked)


@pytest.fixture(scope="module")
def measured_twice(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose first block was measured again by another boot, and of which a request was
    parsed twice.
    """
    folder = small_run(tmp_path_factory.mktemp("results"))
    requests = folder.read(Request)
    first = requests[2]
    again = [
        replace(item, where=replace(item.where, boot_id="b1-s2"))
        for item in requests
        if item.where.block_id == "b1" and item.where.cell_id == first.where.cell_id
    ]
    folder.append(*again, replace(first, prompt_tokens=31))
    folder.close()
    return folder


@given(data=st.data())
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_order_of_lines_cells_hold_what_the_whole_file_says(
    measured_twice: RunFolder, data: st.DataObject
) -> None:
    folder, path = measured_twice, measured_twice.path / "requests.jsonl"
    lines = sorted(path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(data.draw(st.permutations(lines))))

    whole, found = folder.usable(Request), StoredRequests(folder, folder.counting())

    for cell in folder.manifest.plan.cells:
        of_cell = [item for item in whole if item.where.cell_id == cell.cell_id]
        measured = [item for item in of_cell if (item.where.repetition or 0) >= 0]
        assert list(found.measured(cell.cell_id)) == measured
        warmups = [item for item in of_cell if (item.where.repetition or 0) < 0]
        assert list(found.warmups(cell.cell_id)) == warmups
    first_seen = dict.fromkeys(str(item.where.cell_id) for item in whole)
    assert found.cell_ids == tuple(first_seen)


def test_columns_are_what_the_records_say(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    found = StoredRequests(folder, folder.counting())

    for cell in folder.manifest.plan.cells:
        requests = found.measured(cell.cell_id)
        records = list(requests)
        assert len(requests) == len(records) > 0
        for name in (*SECONDS, "distinct_4gram_share", *COUNTS):
            assert requests.values(name) == [getattr(item, name) for item in records]
        assert requests.words("kind") == [item.kind for item in records]
        assert requests.words("boot_id") == [item.where.boot_id for item in records]
        assert requests.ids() == [item.where.request_id for item in records]


def test_a_line_from_before_a_field_was_there_is_read_without_it(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "requests.jsonl"
    path.write_bytes(path.read_bytes().replace(b',"salt":null}', b"}"))
    assert b"salt" not in path.read_bytes()

    found = StoredRequests(folder, folder.counting())

    cell_id = folder.manifest.plan.cells[0].cell_id
    assert found.measured(cell_id).labels("salt") == (None,)


def test_a_run_that_is_cut_into_ranges_has_the_figures_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_run(tmp_path)

    cut = summarise(RunFolder.open(folder.path))
    monkeypatch.setattr(stored, "RANGE_BYTES", 1 << 30)
    whole = summarise(RunFolder.open(folder.path))

    assert cut.rows == whole.rows
    assert cut.verdicts == whole.verdicts


def test_a_broken_line_is_named_by_its_number_in_whatever_range_it_lies(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "requests.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:20], whole[20][:50] + b"\n", *whole[21:]]))

    with pytest.raises(ResultsError, match=r"requests\.jsonl:21: "):
        StoredRequests(folder, folder.counting())


def test_a_negative_time_is_refused_in_whatever_range_it_lies(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    odd = [item for item in folder.read(Request) if item.where.repetition == 1][5]
    folder.append(replace(odd, ttft_s=-0.25))
    folder.close()

    with pytest.raises(ResultsError, match=f"{odd.where.request_id}: `ttft_s` is -0.25 s"):
        StoredRequests(folder, folder.counting())


def test_a_last_line_that_was_cut_off_is_left_out_and_told(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-30])

    torn = RunFolder.open(folder.path)
    StoredRequests(torn, torn.counting())

    assert torn.notes == (f"{path}: the last line was cut off by a crash and is left out",)


def test_readings_of_a_cell_are_those_of_the_whole_file(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    found = StoredRecords(folder, Snapshot, folder.counting())

    for cell in folder.manifest.plan.cells:
        own = [
            item
            for item in folder.usable(Snapshot)
            if item.where.cell_id == cell.cell_id and (item.where.repetition or 0) >= 0
        ]
        assert list(found.of_cell(cell.cell_id)) == own
        assert found.of_cell(cell.cell_id)[0] == own[0]
        assert found.of_cell(cell.cell_id)[1:3] == tuple(own[1:3])


# --- what it costs --------------------------------------------------------------------------------


class Counted:
    """What a summary makes and holds, counted rather than timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = self.made = self.most = 0
        self.live: weakref.WeakSet[object] = weakref.WeakSet()
        decode, table = stored.decode, stored.RequestTable

        def counted_decode(*arguments):
            self.decoded += arguments[1] is stored._Row
            return decode(*arguments)

        def counted_table(*arguments):
            made = table(*arguments)
            self.live.add(made)
            self.made += 1
            self.most = max(self.most, len(self.live))
            return made

        monkeypatch.setattr(stored, "decode", counted_decode)
        monkeypatch.setattr(stored, "RequestTable", counted_table)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_the_columns_of_a_few_cells_are_held_however_many_there_are(
    tmp_path: Path, counted: Counted
) -> None:
    asked = synthetic.matrix(levels=(1, 2, 4, 8), repetitions=1, boots=2)
    folder = synthetic.write_run(tmp_path, asked)

    summarise(folder)

    assert len(folder.manifest.plan.cells) == 18
    assert counted.most <= stored.TABLES_HELD + 1  # the one that is being made


def test_a_run_of_four_times_the_requests_is_read_once_too_and_walked_no_more_often(
    tmp_path: Path, counted: Counted
) -> None:
    made = []
    for name, repetitions in (("few", 2), ("many", 8)):
        folder = small_run(tmp_path / name, repetitions)
        counted.decoded = counted.made = 0
        summarise(RunFolder.open(folder.path))
        assert counted.decoded == len(folder.read(Request))
        made.append(counted.made)

    assert made[0] == made[1]


# --- columns --------------------------------------------------------------------------------------


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert middle([5.0, 1.0, 9.0]) == 5
    assert middle([4.0, 1.0, 9.0, 2.0]) == 3


def test_words_and_groups_come_in_order_of_first_appearance(tmp_path: Path) -> None:
    one = small_run(tmp_path).read(Request)[0]
    asked = [("b", 3), ("a", 1), ("b", None), ("c", None), ("a", 2)]
    requests = Requests.of(
        replace(one, prompt_id=prompt, output_tokens=tokens, index=number)
        for number, (prompt, tokens) in enumerate(asked)
    )

    assert requests.labels("prompt_id") == ("b", "a", "c")
    assert requests.counts("prompt_id") == {"b": 2, "a": 2, "c": 1}
    groups = requests.grouped("output_tokens")
    assert {prompt: values.tolist() for prompt, values in groups.items()} == {"b": [3], "a": [1, 2]}
    assert requests.lacks("output_tokens")
    assert requests.where("prompt_id", "a", "b").values("output_tokens") == [3, 1, None, 2]
    assert requests.where("prompt_id", "a").labels("prompt_id") == ("a",)


def test_no_request_has_no_words_and_no_values() -> None:
    nothing = Requests.of(())

    assert not nothing
    assert nothing.labels("prompt_id") == ()
    assert nothing.values("ttft_s") == []
    assert nothing.grouped("ttft_s") == {}
    assert not nothing.flagged("over_cap").any()


def test_rates_of_a_request_are_those_of_its_times(tmp_path: Path) -> None:
    one = replace(
        small_run(tmp_path).read(Request)[0],
        where=Where(run_id="r", session_id="s1"),
        output_tokens=11,
        first_tokens=1,
        ttft_s=0.5,
        t_last_s=2.5,
        wall_s=2.7,
        prompt_tokens=30,
        cached_tokens=10,
    )

    found = {name: Requests.of([one]).values(name) for name in RATES}

    # 11 / (2.7 - 0.5), (11 - 1) / (2.5 - 0.5), its inverse, and 20 computed tokens in half a second
    assert found["decode_rate"] == [pytest.approx(5.0)]
    assert found["decode_rate_strict"] == [pytest.approx(5.0)]
    assert found["tpot"] == [pytest.approx(0.2)]
    assert found["prefill_rate"] == [pytest.approx(40.0)]
