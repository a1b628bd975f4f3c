"""Reads on the disk: what a thread wrote is what the loop appended, or the file is not there."""

import time

import pytest

from harness.errors import ResultsError
from harness.run.spool import TRAILER, Spool, read_frames


def test_frames_come_back_in_order_with_the_trailer_last(tmp_path):
    spool = Spool(tmp_path / "a.bin")
    spool.append(3, 10, b"abc")
    spool.hand_over()
    spool.append(1, 20, b"")
    spool.append(3, 30, b"d" * 100_000)
    path = spool.finish(b"end")
    assert path == tmp_path / "a.bin"
    assert list(read_frames(path)) == [
        (3, 10, b"abc"),
        (1, 20, b""),
        (3, 30, b"d" * 100_000),
        (TRAILER, 0, b"end"),
    ]
    assert [found.name for found in tmp_path.iterdir()] == ["a.bin"]


def test_reads_are_on_the_disk_while_the_repetition_runs_and_not_in_memory(tmp_path):
    spool = Spool(tmp_path / "a.bin")
    try:
        for number in range(1000):
            spool.append(number, number, b"x" * 1000)
        spool.hand_over()
        part, deadline_s = tmp_path / "a.bin.part", time.monotonic() + 30
        while not part.exists() or part.stat().st_size < 1000 * 1000:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        spool.discard()


def test_a_repetition_that_was_not_finished_leaves_no_file(tmp_path):
    spool = Spool(tmp_path / "a.bin")
    spool.append(0, 1, b"abc")
    spool.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_is_told_with_what_to_do(tmp_path):
    spool = Spool(tmp_path / "gone" / "a.bin")
    spool.append(0, 1, b"abc")
    with pytest.raises(ResultsError, match=r"a\.bin\.part: No such file or directory; choose"):
        spool.finish(b"end")


@pytest.mark.parametrize("cut", [1, 19, 21, 23])
def test_a_file_that_ends_in_mid_frame_is_refused(tmp_path, cut):
    spool = Spool(tmp_path / "a.bin")
    spool.append(0, 1, b"abc")
    path = spool.finish(b"end")
    path.write_bytes(path.read_bytes()[:cut] if cut != 23 else path.read_bytes()[:-1])
    with pytest.raises(ResultsError, match="remove the file"):
        list(read_frames(path))
