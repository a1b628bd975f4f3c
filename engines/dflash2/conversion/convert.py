"""The pipeline: read a block, hash it, quantise it, write it, all at once and in bounded memory.

Blocks are read and written in the order of the file by one thread while others quantise and one
hashes; NumPy and hashlib let each other run. A conversion appears whole or not at all: it is
written beside its destination, made durable, and renamed.
"""

import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.checkpoint import (
    CONFIG,
    MANIFEST,
    WEIGHTS,
    Manifest,
    Origin,
    SourceCheckpoint,
    blob_sha256,
    stat_stamp,
)
from engines.dflash2.conversion.layout import Block, Part, blocks
from engines.dflash2.conversion.progress import Report
from engines.dflash2.conversion.quantize import (
    GROUP_SIZE,
    NotFiniteError,
    Quantized,
    quantize,
)
from engines.dflash2.conversion.tensor_file import Tensor, open_readonly

SPARE_BYTES = 16 << 20  # free space to leave beside the output
COPY_BYTES = 4 << 20  # read at once where bytes are only hashed
NUM_FINISH_STEPS = 4
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A block on its way: what it was, what it becomes, and its place in the source's hash."""

    block: Block
    data: bytes
    hashed: Future[None]
    quantized: Future[Quantized] | None  # None where the bytes pass through


def convert(
    source: SourceCheckpoint, partial: Path, destination: Path, origin: Origin, report: Report
) -> Manifest:
    """Fill the partial folder, which the caller has claimed, and make it the destination."""
    try:
        _check_space(partial, source.layout.num_bytes)
        source_sha256, sha256 = _write_weights(source, partial / WEIGHTS, report)
        _check_source(source, source_sha256)
        manifest = Manifest(
            source_repository=origin.repository,
            source_revision=origin.revision,
            source_sha256=source_sha256,
            num_bytes=source.layout.num_bytes,
            sha256=sha256,
            num_tensors=source.layout.num_tensors,
        )
        report("finish", 1, NUM_FINISH_STEPS)
        _write_text(partial / CONFIG, source.converted_config)
        report("finish", 2, NUM_FINISH_STEPS)
        _write_text(partial / MANIFEST, manifest.text())
        _fsync_folder(partial)
        report("finish", 3, NUM_FINISH_STEPS)
        os.rename(partial, destination)
        _fsync_folder(destination.parent)
        report("finish", 4, NUM_FINISH_STEPS)
    except OSError as error:
        raise ModelError(
            f"{destination}: cannot be written ({error.strerror}); nothing was left behind. "
            "Make room, or choose another place."
        ) from error
    return manifest


@contextmanager
def claim(destination: Path, on_wait: Callable[[], None]) -> Iterator[Path]:
    """Hold the folder in which this destination is prepared; nobody else holds it meanwhile.

    The folder is its own lock. A process that dies gives the lock back with its life, and what it
    left in the folder is removed by the next one.
    """
    partial = destination.with_name(f".{destination.name}.partial")
    descriptor = _lock_folder(partial, on_wait)
    try:
        _empty(partial)
        yield partial
    finally:
        # Under its own name it failed; renamed, it has become the destination.
        if _is_same_folder(partial, descriptor):
            with suppress(OSError):  # what made it fail is on its way up; the next one removes it
                shutil.rmtree(partial)
        os.close(descriptor)


def file_sha256(path: Path, report: Callable[[int, int], None]) -> str:
    """The hash of a whole file; report: bytes done, bytes in all."""
    digest, done = hashlib.sha256(), 0
    descriptor = open_readonly(path)
    try:
        total = os.fstat(descriptor).st_size
        while data := os.pread(descriptor, COPY_BYTES, done):
            digest.update(data)
            done += len(data)
            report(done, total)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _write_weights(source: SourceCheckpoint, path: Path, report: Report) -> tuple[str, str]:
    """Convert the weights into a new file -> sha256 of the source's file and of the new one."""
    readable = open_readonly(source.weights)
    writable = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        header = _read(source.weights, readable, 0, source.file.data_offset)
        source_digest = hashlib.sha256(header)
        writer = _Writer(writable, source.layout.header)
        for pending in _pipeline(source, readable, source_digest):
            writer.write(pending)
            done = source.file.data_offset + pending.block.part.source.begin
            done += pending.block.begin + pending.block.num_bytes
            report("quantize", done, source.file.num_bytes)
        os.fsync(writable)
        return source_digest.hexdigest(), writer.sha256()
    finally:
        os.close(readable)
        os.close(writable)


def _pipeline(
    source: SourceCheckpoint, readable: int, source_digest: "hashlib._Hash"
) -> Iterator[_Pending]:
    """The source's blocks in order, each hashed and quantised while the next ones are read."""
    num_threads = len(os.sched_getaffinity(0))
    pending: deque[_Pending] = deque()
    with ThreadPoolExecutor(num_threads) as quantizers, ThreadPoolExecutor(1) as hasher:
        for block in blocks(source.layout):
            offset = source.file.data_offset + block.part.source.begin + block.begin
            data = _read(source.weights, readable, offset, block.num_bytes)
            quantized = None
            if block.part.scales is not None:
                quantized = quantizers.submit(_quantize, source.weights, block.part.source, data)
            hashed = hasher.submit(source_digest.update, data)
            pending.append(_Pending(block=block, data=data, hashed=hashed, quantized=quantized))
            if len(pending) > num_threads + 1:
                yield _finished(pending.popleft())
        while pending:
            yield _finished(pending.popleft())


def _finished(pending: _Pending) -> _Pending:
    pending.hashed.result()
    return pending


def _quantize(path: Path, tensor: Tensor, data: bytes) -> Quantized:
    words = np.frombuffer(data, "<u2").reshape(-1, GROUP_SIZE)
    try:
        return quantize(words)
    except NotFiniteError as error:
        raise ModelError(
            f"{path}: {tensor.name} holds {error}; no code can mean that, so find out what "
            "spoiled the checkpoint"
        ) from error


class _Writer:
    """Puts blocks in their places and hashes the file in its own order, as far as it is done."""

    def __init__(self, descriptor: int, header: bytes) -> None:
        self._descriptor = descriptor
        self._data_offset = len(header)
        self._digest = hashlib.sha256(header)
        self._write(header, 0)

    def write(self, pending: _Pending) -> None:
        block, part = pending.block, pending.block.part
        if pending.quantized is None or part.scales is None or part.biases is None:
            self._write_main(part, block.begin, pending.data)
            return
        quantized = pending.quantized.result()
        # A source byte is half a number: a code is half as long, a scale 1/64 as long.
        self._write_main(part, block.begin // 2, quantized.codes.data)
        for tensor, words in ((part.scales, quantized.scales), (part.biases, quantized.biases)):
            self._write(words.data, self._data_offset + tensor.begin + block.begin // GROUP_SIZE)
        if block.begin + block.num_bytes == part.source.num_bytes:
            # Scales and biases stand behind all codes, so they are hashed when these are; read
            # back, because a tensor's own are as many as it likes.
            self._hash_written(part.scales.begin, part.biases.end)

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def _write_main(self, part: Part, begin: int, data: "bytes | memoryview") -> None:
        self._write(data, self._data_offset + part.main.begin + begin)
        self._digest.update(data)

    def _write(self, data: "bytes | memoryview", offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def _hash_written(self, begin: int, end: int) -> None:
        for at in range(begin, end, COPY_BYTES):
            num_bytes = min(COPY_BYTES, end - at)
            self._digest.update(os.pread(self._descriptor, num_bytes, self._data_offset + at))


def _read(path: Path, descriptor: int, offset: int, num_bytes: int) -> bytes:
    try:
        data = os.pread(descriptor, num_bytes, offset)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) < num_bytes:
        raise ModelError(f"{path}: became shorter while it was converted; convert it again")
    return data


def _check_source(source: SourceCheckpoint, sha256: str) -> None:
    """Raise if what was read is not one file from start to end, or not the one it is named."""
    if stat_stamp(source.weights) != source.stamp:
        raise ModelError(f"{source.weights}: changed while it was converted; convert it again")
    named = blob_sha256(source.weights)
    if named is not None and named != sha256:
        raise ModelError(
            f"{source.weights}: is named by the sha256 {named}, but its bytes have {sha256}; "
            "fetch the file again"
        )


def _check_space(folder: Path, num_bytes: int) -> None:
    found = os.statvfs(folder)
    free_bytes, needed_bytes = found.f_bavail * found.f_frsize, num_bytes + SPARE_BYTES
    if free_bytes < needed_bytes:
        raise ModelError(
            f"{folder.parent}: the conversion needs {needed_bytes:,} bytes there and "
            f"{free_bytes:,} are free; make room, or choose another place"
        )


def _lock_folder(folder: Path, on_wait: Callable[[], None]) -> int:
    while True:
        _make_partial(folder)
        try:
            # No link is followed: what it leads to is not ours to empty.
            descriptor = os.open(folder, FOLDER_FLAGS | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # its holder finished in between
        except OSError as error:
            raise _in_the_way(folder, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_same_folder(folder, descriptor):
            return descriptor
        os.close(descriptor)  # it was renamed or removed by the one who held it


def _make_partial(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise _in_the_way(folder, error) from error
    except OSError as error:
        raise ModelError(
            f"{folder.parent}: cannot be written ({error.strerror}); make it a writable folder, "
            "or choose another place"
        ) from error


def _in_the_way(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"{folder}: stands where a conversion is prepared and cannot be used ({error.strerror}); "
        "move it away"
    )


def _is_same_folder(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise _in_the_way(folder, error) from error


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, FOLDER_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
