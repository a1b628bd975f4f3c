"""What a node wrote joins the run: whole lines, each once, and never an end before what it ends."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.bundle import Bundle, Seen, gather, join
from harness.records import CellEnd, RepetitionEnd, Request
from harness.store import FILES, RunFolder
from tests.harness import synthetic


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's folder with everything that a measured run leaves, and the odds of a difference."""
    folder = synthetic.write_run(tmp_path_factory.mktemp("node"), synthetic.matrix(levels=()))
    first, *_, last = folder.read(Request)
    folder.append(synthetic.rescore(last, first, ()))
    folder.close()
    return folder.path


@pytest.fixture
def run(part: Path, tmp_path: Path) -> RunFolder:
    """The head's folder of the same run, still empty."""
    return RunFolder.create(tmp_path, RunFolder.open(part).manifest)


def joined_whole(run: RunFolder, part: Path) -> Bundle:
    bundle = gather(part, Seen())
    join(run, pickle.loads(pickle.dumps(bundle)))  # as it crosses the network
    return bundle


def test_everything_that_a_node_wrote_arrives(run: RunFolder, part: Path) -> None:
    joined_whole(run, part)
    for name in FILES.values():
        there, here = part / name, run.path / name
        assert here.exists() == there.exists(), name
        assert not there.exists() or here.read_bytes() == there.read_bytes()
    there_files = sorted(path.name for path in (part / "events").iterdir())
    assert sorted(path.name for path in (run.path / "events").iterdir()) == there_files


def test_what_was_seen_is_not_brought_twice(run: RunFolder, part: Path) -> None:
    first = joined_whole(run, part)
    assert not first.is_empty
    assert gather(part, first.seen).is_empty


def test_only_whole_lines_travel(run: RunFolder, part: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    first, second = (part / FILES[Request]).read_bytes().split(b"\n")[:2]
    file = folder / FILES[Request]
    file.write_bytes(first + b"\n" + second[:40])
    bundle = gather(folder, Seen())
    assert len(join(run, bundle)) == 1
    file.write_bytes(first + b"\n" + second + b"\n")
    assert [record.where for record in join(run, gather(folder, bundle.seen))] == [
        run.read(Request)[1].where
    ]


def test_files_that_are_being_written_stay_where_they_are(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (events / ".c.b1-s1.0.parquet.77").write_bytes(b"half")
    assert gather(tmp_path, Seen()).is_empty


def test_a_log_that_grew_comes_again_whole(tmp_path: Path, run: RunFolder) -> None:
    log = tmp_path / "servers" / "b1-s1" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"begun\n")
    bundle = gather(tmp_path, Seen())
    log.write_bytes(b"begun\nready\n")
    join(run, gather(tmp_path, bundle.seen))
    assert (run.path / "servers" / "b1-s1" / "stdout.log").read_bytes() == b"begun\nready\n"


class StoppedError(Exception):
    pass


def test_a_head_that_dies_while_joining_never_tells_of_what_it_does_not_hold(
    run: RunFolder, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after every record: an end is there only with all that it ends."""
    bundle = gather(part, Seen())
    total = sum(data.count(b"\n") for data in bundle.lines.values())
    requests = {request.where for request in RunFolder.open(part).read(Request)}
    for cut in range(0, total, 7):
        folder = RunFolder.create(run.path / f"cut{cut}", run.manifest)
        _join_until(folder, bundle, cut, monkeypatch)
        held = {request.where for request in folder.read(Request)}
        for end in folder.read(RepetitionEnd):
            of_it = {w for w in requests if replace(w, request_id=None) == end.where}
            assert of_it <= held
        ended = {replace(end.where, repetition=None) for end in folder.read(RepetitionEnd)}
        for cell in folder.read(CellEnd):
            assert cell.where in ended


def _join_until(
    folder: RunFolder, bundle: Bundle, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first `cut` records reach the disk."""
    append = folder.append

    def append_some(*records: object) -> None:
        append(*records[:cut])  # type: ignore[arg-type]
        raise StoppedError

    monkeypatch.setattr(folder, "append", append_some)
    with pytest.raises(StoppedError):
        join(folder, bundle)
    folder.close()
