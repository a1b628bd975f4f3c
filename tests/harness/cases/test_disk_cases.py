"""B120: a disk that fills up costs what was being written and nothing that was there before."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.records import LogEntry, Where
from harness.run.spool import Spool
from harness.store import RunFolder
from tests.harness import synthetic

CHECKOUT = Path(__file__).parents[3]


def small_run(path: Path) -> RunFolder:
    return synthetic.write_run(path, synthetic.matrix(boots=1, levels=(), drafters=()))


def entry(message: str) -> LogEntry:
    where = Where(run_id="r", session_id="s1")
    return LogEntry(where=where, at="2026-11-29T12:00:00Z", event="note", message=message)


# --- a real small disk ----------------------------------------------------------------------------

FILL_THEN_WRITE = """
import sys
from pathlib import Path
from harness import cli
from harness.errors import ResultsError
from harness.run.spool import Spool
from harness.store import EventRow, RunFolder
from tests.harness.cases.test_disk_cases import entry

disk = Path(sys.argv[1])
folder = RunFolder.open(disk / "run")
cli.main(["report", str(disk / "run"), "--reports", str(disk / "reports")])
folder.append(entry("kept"))
folder.write_status({"state": "running", "text": "x" * 20_000})
folder.spool_path("c", "b1-s1", 0)
with open(disk / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"0" * 1024)
    except OSError:
        pass
with open(disk / "filler", "r+b") as filler:
    filler.truncate((disk / "filler").stat().st_size - 4096)  # so much is free


def spool():
    spool = Spool(folder.spool_path("c", "b1-s1", 0))
    for number in range(30):
        spool.append(number, 0, b"z" * 1024)
        spool.hand_over()
    spool.finish(b"{}")


row = EventRow(
    request_id="r", offset_ns=tuple(range(7, 300_007, 7)), tokens=(1,) * 42_858, text=None,
    token_ids=None,
)
for write in (
    lambda: folder.write_status({"state": "finished", "text": "y" * 30_000}),
    lambda: [folder.append(entry("lost" * 400)) for _ in range(20)],
    lambda: folder.write_events("c", "b1-s1", 0, [row]),
    spool,
):
    try:
        write()
    except ResultsError as error:
        print(error.exit_code, error)
    else:
        print("written")
print(cli.main(["report", str(disk / "run"), "--reports", str(disk / "reports")]))
"""


def on_a_small_disk(folder: Path, script: str) -> str:
    """Run `script` with a copy of `folder` on a file system of 4 MiB of its own."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no `unshare` here to make a small file system with")
    disk, program = folder.parent / "disk", folder.parent / "script.py"
    shell = f"""
        set -e
        mount -t tmpfs -o size=4m tmpfs {disk}
        cp -r {folder} {disk}/run
        {sys.executable} {program} {disk} 2>&1
        echo ---
        find {disk} -name '.*' -o -name '*.part' -o -size 0
        echo ---
        head -c 60 {disk}/run/status.json
        echo
        tail -n 1 {disk}/run/log.jsonl
        tail -c 2 {disk}/reports/*/summary.json
    """
    disk.mkdir()
    program.write_text(script, encoding="utf-8")
    made = subprocess.run(
        [unshare, "-rm", "sh", "-c", textwrap.dedent(shell)],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        check=False,
    )
    said = made.stderr + made.stdout
    if made.returncode != 0 and ("unshare" in said or "mount:" in said):
        pytest.skip(f"this user may not mount a small file system: {said.strip()[:200]}")
    assert made.returncode == 0, said
    return made.stdout


def test_b120_on_a_full_disk_old_files_stay_whole_and_the_messages_name_path_and_room(
    tmp_path: Path,
) -> None:
    """Wrong: a results file of 0 or 4096 bytes, and exit code 0."""
    folder = small_run(tmp_path / "results")
    said, left, kept = on_a_small_disk(folder.path, FILL_THEN_WRITE).split("---\n")
    *messages, report, code = [line for line in said.splitlines() if "/reports/2" not in line[:9]]
    names = ("status.json", "log.jsonl", "c.b1-s1.0.parquet", "c.b1-s1.0.bin.part")

    assert len(messages) >= len(names), said
    for message, name in zip(messages[-len(names) :], names, strict=True):
        assert message.startswith("3 /")
        assert f"/{name}: " in message
        assert "o space left on device" in message
        assert (
            "(0 MB free); make room and try again; `dflashbench resume` goes on with a run"
            in message
        )
    assert "No space left on device, so there is no report; the run is kept" in report
    assert code == "3"
    assert left == ""  # nothing half written, nothing emptied
    status, log, end = kept.splitlines()
    assert status.startswith('{"state":"running","text":"xxxx')
    assert json.loads(log)["message"] in ("kept", "lost" * 400)  # whole lines only
    assert end == "}"


# --- where nobody may mount one -------------------------------------------------------------------


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk with room for so many bytes: `os.write` takes what fits, and then refuses."""
    room = [0]
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    return room


def test_b120_a_line_that_fits_only_in_part_is_taken_back(
    tmp_path: Path, full_after: list[int]
) -> None:
    full_after[0] = 1 << 30
    folder = small_run(tmp_path)
    folder.append(entry("kept"))
    before = (folder.path / "log.jsonl").read_bytes()
    full_after[0] = 100

    with pytest.raises(ResultsError, match=r"log\.jsonl: No space left on device \(\d+ MB free\)"):
        folder.append(entry("lost" * 400))
    assert (folder.path / "log.jsonl").read_bytes() == before


def test_b120_a_repetition_that_fits_only_in_part_is_no_spool(
    tmp_path: Path, full_after: list[int]
) -> None:
    full_after[0] = 100
    spool = Spool(tmp_path / "repetition.bin")
    spool.append(0, 0, b"z" * 4096)

    with pytest.raises(ResultsError, match=r"repetition\.bin\.part: No space left on device \(\d+"):
        spool.finish(b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full, others do not")
def test_b120_a_file_that_takes_nothing_ends_a_run_with_a_message_and_not_with_zero(
    tmp_path: Path,
) -> None:
    folder = small_run(tmp_path)
    (folder.path / "log.jsonl").unlink(missing_ok=True)
    (folder.path / "log.jsonl").symlink_to("/dev/full")

    with pytest.raises(ResultsError, match=r"log\.jsonl: No space left on device") as caught:
        folder.append(entry("lost"))
    assert caught.value.exit_code == 3
