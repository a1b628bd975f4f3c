"""A run's folder: what is on the disk, what a crash leaves, what is usable afterwards."""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.records import (
    SCHEMA,
    Boot,
    Cell,
    CellEnd,
    Counters,
    LogEntry,
    Manifest,
    Plan,
    RepetitionEnd,
    Request,
    RequestError,
    Snapshot,
    Where,
)
from harness.store import FILES, EventRow, RunFolder, latest_run, new_run_id

MANIFEST = Manifest(
    schema=SCHEMA,
    run_id="20261129-101112-quickstart",
    created_at="2026-11-29T10:11:12Z",
    tool="dflashbench 0.1.0",
    matrix_yaml="name: quickstart\n",
    matrix_path="configs/matrices/quickstart.yaml",
    name="quickstart",
    purpose="measurement",
    prompt_sets={"demo5": "abc"},
    prompt_kinds={"demo5": {"p1": "code"}},
    models={},
    held_constant={"kv_len": 2048, "enable_prefix_caching": True},
    plan=Plan(cells=(), blocks=(), plan_hash="h", estimated_s=None),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    created = RunFolder.create(tmp_path / "results", MANIFEST)
    yield created
    created.close()


def where(
    repetition: int | None = None,
    *,
    boot: str = "b1-s1",
    cell: str = "c1",
    request: str | None = None,
) -> Where:
    return Where(
        run_id=MANIFEST.run_id,
        session_id=boot.split("-")[1],
        block_id=boot.split("-")[0],
        boot_id=boot,
        cell_id=cell,
        repetition=repetition,
        request_id=request,
    )


def log(message: str) -> LogEntry:
    at = "2026-11-29T10:11:13Z"
    return LogEntry(where=Where(run_id="r", session_id="s1"), at=at, event="note", message=message)


def finished(boot: str = "b1-s1", cell: str = "c1") -> CellEnd:
    return CellEnd(where=where(boot=boot, cell=cell), outcome="finished", message=None)


def repetition_end(repetition: int, boot: str = "b1-s1", cell: str = "c1") -> RepetitionEnd:
    return RepetitionEnd(
        where=where(repetition, boot=boot, cell=cell),
        started_at="",
        window_s=1.5,
        num_requests=1,
        num_failed=0,
        in_flight_max=1,
        cpu_share=None,
        loop_lag_max_s=None,
    )


def request(repetition: int, boot: str = "b1-s1", cell: str = "c1", tokens: int = 5) -> Request:
    return Request(
        where=where(repetition, boot=boot, cell=cell, request=f"{cell}.{boot}.{repetition}.0"),
        prompt_id="p1",
        kind="code",
        index=0,
        started_at="",
        t0_ns=0,
        send_lateness_s=0.0,
        connect_s=None,
        status="ok",
        error=None,
        http_status=200,
        ttfr_s=0.1,
        ttft_s=0.1,
        ttfa_s=0.1,
        t_last_s=0.9,
        wall_s=1.0,
        output_tokens=tokens,
        output_tokens_source="usage",
        first_tokens=1,
        first_tokens_source="usage",
        prompt_tokens=9,
        cached_tokens=None,
        num_output_events=5,
        num_reads=5,
        finish_reason="stop",
        distinct_4gram_share=None,
        text_sha256=None,
        engine_timings={"draft_ms": 1.5},
    )


def boot(boot_id: str, stopped_at: str | None) -> Boot:
    return Boot(
        where=where(boot=boot_id),
        variant="plain",
        argv=("serve",),
        environment={},
        pid=1,
        url="http://127.0.0.1:1",
        started_at="",
        ready_s=2.0,
        version=None,
        health=None,
        build=None,
        log_path="",
        stopped_at=stopped_at,
    )


# --- making and finding runs ----------------------------------------------------------------------


def test_a_new_run_has_its_manifest_and_reads_back(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path).manifest == MANIFEST


def test_an_existing_run_is_never_written_into(folder: RunFolder) -> None:
    with pytest.raises(ResultsError, match="quickstart exists already: another run has this id"):
        RunFolder.create(folder.path.parent, MANIFEST)


def test_a_run_id_is_the_utc_time_and_the_matrix(tmp_path: Path) -> None:
    noon_in_berlin = datetime(2026, 11, 29, 12, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert new_run_id(tmp_path, "quickstart", noon_in_berlin) == "20261129-110005-quickstart"


def test_runs_of_one_second_get_different_ids(tmp_path: Path) -> None:
    now = datetime(2026, 11, 29, 12, 0, 5, tzinfo=UTC)
    for expected in ("20261129-120005-q", "20261129-120005-q-2", "20261129-120005-q-3"):
        run_id = new_run_id(tmp_path, "q", now)
        assert run_id == expected
        (tmp_path / run_id).mkdir()


def test_the_latest_run_is_the_newest_folder_with_a_manifest(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, replace(MANIFEST, run_id="20261129-090000-b"))
    newest = RunFolder.create(tmp_path, replace(MANIFEST, run_id="20261129-100000-a"))
    RunFolder.create(tmp_path, replace(MANIFEST, run_id="published"))
    (tmp_path / "20261129-110000-empty").mkdir()
    assert latest_run(tmp_path) == newest.path


def test_no_run_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no run in .*; `dflashbench run MATRIX` makes one"):
        latest_run(tmp_path / "results")


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"has no manifest\.json: not a run's folder"):
        RunFolder.open(tmp_path)


def test_a_run_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    newer = {"schema": SCHEMA + 1, "something": "else"}
    (tmp_path / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(ResultsError) as caught:
        RunFolder.open(tmp_path)
    assert "written by a newer dflashbench (schema 2, this one reads 1)" in str(caught.value)
    assert "update dflashbench" in str(caught.value)


def test_a_broken_manifest_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": 1')
    with pytest.raises(ResultsError, match=r"manifest\.json: Input data was truncated"):
        RunFolder.open(tmp_path)


# --- appending and reading ------------------------------------------------------------------------


def test_records_read_back_in_the_order_they_were_appended(folder: RunFolder) -> None:
    folder.append(request(0), finished(), request(1))
    assert folder.read(Request) == [request(0), request(1)]
    assert folder.read(CellEnd) == [finished()]
    assert folder.read(Snapshot) == []
    assert folder.notes == ()


def test_every_record_is_one_line_even_with_odd_line_ends_in_it(folder: RunFolder) -> None:
    odd = "x\u2028y\x85z\nw\r"
    folder.append(log(odd), log("b"))
    assert (folder.path / "log.jsonl").read_bytes().count(b"\n") == 2
    assert [entry.message for entry in folder.read(LogEntry)] == [odd, "b"]


def test_a_number_that_json_does_not_have_never_reaches_the_disk(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append(replace(repetition_end(0), window_s=float("nan")))
    assert folder.read(RepetitionEnd) == []


def test_a_torn_last_line_is_left_out_and_told_once(folder: RunFolder) -> None:
    folder.append(log("one"), log("two"))
    path = folder.path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"where":{"run_id":"r"')
    for _ in range(2):
        assert [entry.message for entry in folder.read(LogEntry)] == ["one", "two"]
    assert folder.notes == (f"{path}: the last line was cut off by a crash and is left out",)


def test_an_append_sets_the_torn_line_aside_first(folder: RunFolder) -> None:
    folder.append(log("one"))
    folder.close()
    path = folder.path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"torn')
    resumed = RunFolder.open(folder.path)
    resumed.append(log("two"))
    assert [entry.message for entry in resumed.read(LogEntry)] == ["one", "two"]
    assert resumed.notes == ()
    assert (folder.path / "log.jsonl.torn").read_bytes() == b'{"torn\n'
    resumed.close()


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(folder: RunFolder) -> None:
    folder.append(log("one"))
    path = folder.path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"torn\n' + path.read_bytes())
    with pytest.raises(ResultsError) as caught:
        folder.read(LogEntry)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "it was changed after it was written, restore it" in str(caught.value)


def test_keys_that_a_later_version_adds_are_skipped(folder: RunFolder) -> None:
    folder.append(log("one"))
    path = folder.path / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"event"', b'"mood":"calm","event"'))
    assert folder.read(LogEntry) == [log("one")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full, others do not")
def test_a_full_disk_is_told_with_path_and_free_space(folder: RunFolder) -> None:
    os.symlink("/dev/full", folder.path / "log.jsonl")
    with pytest.raises(ResultsError) as caught:
        folder.append(log("one"))
    assert str(caught.value).startswith(f"{folder.path / 'log.jsonl'}: No space left on device (")
    assert "MB free); make room and try again; `dflashbench resume` goes on with a run" in str(
        caught.value
    )


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder should be")
    with pytest.raises(ResultsError) as caught:
        RunFolder.create(tmp_path / "results", MANIFEST)
    assert str(caught.value).startswith(f"{tmp_path / 'results' / MANIFEST.run_id}: ")


def test_only_one_process_writes_into_a_run(folder: RunFolder) -> None:
    folder.write_status({"pid": 4711})
    folder.append(log("one"))
    second = RunFolder.open(folder.path)
    with pytest.raises(ResultsError) as caught:
        second.append(log("two"))
    assert "another dflashbench (process 4711) is writing into this run" in str(caught.value)
    folder.close()
    second.append(log("two"))
    assert len(second.read(LogEntry)) == 2
    second.close()


# --- what is usable -------------------------------------------------------------------------------


def test_finished_cells_are_those_that_ended_well(folder: RunFolder) -> None:
    folder.append(
        finished(cell="c1"),
        CellEnd(where=where(cell="c2"), outcome="unavailable", message="did not boot"),
    )
    assert folder.finished_cells() == {("b1", "c1")}


def test_a_resumed_cell_supersedes_what_the_torn_boot_left_of_it(folder: RunFolder) -> None:
    folder.append(request(0), repetition_end(0), request(1))  # killed in repetition 1
    folder.append(
        request(0, "b1-s2"),
        repetition_end(0, "b1-s2"),
        request(1, "b1-s2"),
        repetition_end(1, "b1-s2"),
        finished("b1-s2"),
    )
    assert folder.usable(Request) == [request(0, "b1-s2"), request(1, "b1-s2")]
    assert folder.usable(RepetitionEnd) == [
        repetition_end(0, "b1-s2"),
        repetition_end(1, "b1-s2"),
    ]
    assert len(folder.read(Request)) == 4


def test_other_cells_of_the_torn_boot_stay_usable(folder: RunFolder) -> None:
    folder.append(request(0, cell="c1"), repetition_end(0, cell="c1"), finished(cell="c1"))
    folder.append(request(0, cell="c2"))  # killed here
    folder.append(
        request(0, "b1-s2", cell="c2"),
        repetition_end(0, "b1-s2", cell="c2"),
        finished("b1-s2", cell="c2"),
    )
    assert folder.usable(Request) == [request(0, cell="c1"), request(0, "b1-s2", cell="c2")]


def test_the_same_cell_of_another_block_is_not_superseded(folder: RunFolder) -> None:
    for boot_id in ("b1-s1", "b4-s1"):
        folder.append(request(0, boot_id), repetition_end(0, boot_id), finished(boot_id))
    assert folder.usable(Request) == [request(0, "b1-s1"), request(0, "b4-s1")]


def test_whole_repetitions_of_an_unfinished_cell_are_usable(folder: RunFolder) -> None:
    folder.append(request(0), repetition_end(0), request(1))
    assert folder.usable(Request) == [request(0)]


def test_an_unavailable_boot_supersedes_nothing(folder: RunFolder) -> None:
    folder.append(request(0), repetition_end(0))
    folder.append(CellEnd(where=where(boot="b1-s2"), outcome="unavailable", message="did not boot"))
    assert folder.usable(Request) == [request(0)]


def test_warm_up_requests_stay_usable_for_checks(folder: RunFolder) -> None:
    folder.append(request(-1), request(0), repetition_end(0), finished())
    assert [r.where.repetition for r in folder.usable(Request)] == [-1, 0]


def test_a_request_that_was_parsed_twice_counts_once(folder: RunFolder) -> None:
    folder.append(request(0, tokens=5), request(0, tokens=6), repetition_end(0))
    assert folder.usable(Request) == [request(0, tokens=6)]


def test_a_boot_is_what_its_last_record_says(folder: RunFolder) -> None:
    folder.append(boot("b1-s1", None), boot("b2-s1", None), boot("b1-s1", "later"))
    assert [(b.where.boot_id, b.stopped_at) for b in folder.boots()] == [
        ("b1-s1", "later"),
        ("b2-s1", None),
    ]


# --- whole files ----------------------------------------------------------------------------------


def test_events_read_back_with_what_was_not_told(folder: RunFolder) -> None:
    rows = [
        EventRow(
            request_id="c1.b1-s1.0.0",
            offset_ns=(100, 2_500_000_000_000),
            tokens=(3, None),
            text="Käse 🚀",
            token_ids=(1, 2, 3),
        ),
        EventRow(request_id="c1.b1-s1.0.1", offset_ns=(), tokens=(), text=None, token_ids=None),
    ]
    path = folder.write_events("c1", "b1-s1", 0, rows)
    assert path == folder.path / "events" / "c1.b1-s1.0.parquet"
    assert folder.read_events("c1", "b1-s1", 0) == rows
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing beside it


def test_events_that_are_missing_or_broken_are_named(folder: RunFolder) -> None:
    with pytest.raises(ResultsError, match=r"c1\.b1-s1\.0\.parquet: No such file"):
        folder.read_events("c1", "b1-s1", 0)
    path = folder.write_events("c1", "b1-s1", 0, [])
    path.write_bytes(b"PAR")
    with pytest.raises(ResultsError, match=r"c1\.b1-s1\.0\.parquet is no events file"):
        folder.read_events("c1", "b1-s1", 0)


def test_the_status_is_replaced_whole(folder: RunFolder) -> None:
    assert folder.read_status() is None
    folder.write_status({"cell": "c1", "left_s": 60.5})
    folder.write_status({"cell": "c2"})
    assert folder.read_status() == {"cell": "c2"}


def test_a_failed_replacement_leaves_the_old_file(folder: RunFolder) -> None:
    folder.write_status({"cell": "c1"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_status({"left_s": float("inf")})
    assert folder.read_status() == {"cell": "c1"}


def test_a_metrics_page_is_kept_as_scraped(folder: RunFolder) -> None:
    page = b'dflash2:plain_steps_total{model_name="m"} 5\n'
    path = folder.write_page("c1", "b1-s1", page)
    assert path == folder.path / "pages" / "c1.b1-s1.prom.gz"
    assert gzip.decompress(path.read_bytes()) == page


def test_streamed_files_have_their_folders_ready(folder: RunFolder) -> None:
    assert folder.server_folder("b1-s1") == folder.path / "servers" / "b1-s1"
    assert folder.server_folder("b1-s1").is_dir()
    spool = folder.spool_path("c1", "b1-s1", 2)
    assert spool == folder.path / "spool" / "c1.b1-s1.2.bin"
    assert spool.parent.is_dir()


# --- the promise ----------------------------------------------------------------------------------


def test_the_page_on_results_names_every_file_and_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results-format.md").read_text(encoding="utf-8")
    types = (*FILES, Manifest, Cell, Where, Counters, RequestError)
    words = {field.name for kind in types for field in fields(kind)} | set(FILES.values())
    assert sorted(word for word in words - {"where"} if f"`{word}`" not in page) == []
