"""Converting a folder into a new one: the bytes, what is refused, and what a failure leaves."""

import contextlib
import hashlib
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.cache import convert_to, folder_to_load
from engines.dflash2.conversion.checkpoint import Manifest, Origin

from . import scalar
from .fixture import (
    DRAFTER_CONFIG,
    FIXTURE_BYTES,
    FIXTURE_SHA256,
    bf16_file,
    fixture,
    random_file,
    write_source,
)

CHECKOUT = Path(__file__).parents[3]
HERE = Origin(repository="org/name", revision="r1")
SHAPES = {
    "candidate_selector.hidden_projection.weight": [3, 64],
    "candidate_selector.predecessor_codebook": [130, 64],  # two blocks, the second of two rows
    "fc.weight": [5, 320],
    "layers.0.attention_conv.base_kernel": [2, 2, 64],
    "norm.weight": [64],
    "some.bias": [2, 64],
}


def convert(source: Path, destination: Path, report: Callable = lambda *_: None) -> Manifest:
    return convert_to(source, destination, HERE, lambda text: None, report)


def in_a_process(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engines.dflash2", *map(str, arguments)]
    return subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, check=False, **options
    )


def test_the_published_fixture_has_the_published_hash(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())
    manifest = convert(source, tmp_path / "q8")
    weights = (tmp_path / "q8" / "model.safetensors").read_bytes()
    assert len(weights) == FIXTURE_BYTES == manifest.num_bytes
    assert hashlib.sha256(weights).hexdigest() == FIXTURE_SHA256 == manifest.sha256
    assert weights == scalar.convert(fixture())


@pytest.mark.parametrize("seed", range(3))
def test_a_random_checkpoint_equals_the_scalar_implementation(tmp_path: Path, seed: int) -> None:
    weights = random_file(SHAPES, seed)
    convert(write_source(tmp_path / "source", weights), tmp_path / "q8")
    assert (tmp_path / "q8" / "model.safetensors").read_bytes() == scalar.convert(weights)


def test_matrices_without_rows_or_columns_convert_to_such(tmp_path: Path) -> None:
    shapes = {"a.weight": [4, 0], "b.weight": [0, 64], "c.weight": [2, 64], "d.weight": [2, 0]}
    weights = random_file(shapes)
    convert(write_source(tmp_path / "source", weights), tmp_path / "q8")
    assert (tmp_path / "q8" / "model.safetensors").read_bytes() == scalar.convert(weights)


def test_the_source_is_read_in_the_order_of_its_bytes_whatever_its_header_says(
    tmp_path: Path,
) -> None:
    weights = bf16_file([("b.weight", [1, 64], [0x3F80] * 64), ("a.bias", [2], [1, 2])])
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    text = json.dumps(dict(sorted(header.items()))).encode()  # "a.bias", the later one, first
    data = weights[8 + length :]
    source = write_source(tmp_path / "source", len(text).to_bytes(8, "little") + text + data)
    convert(source, tmp_path / "q8")
    assert (tmp_path / "q8" / "model.safetensors").read_bytes() == scalar.convert(weights)


def test_config_and_manifest_stand_beside_the_weights(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())
    convert(source, tmp_path / "q8")
    assert sorted(path.name for path in (tmp_path / "q8").iterdir()) == [
        "config.json", "model.safetensors", "source-repository.json",
    ]  # fmt: skip
    config = json.loads((tmp_path / "q8" / "config.json").read_text())
    assert list(config) == [*DRAFTER_CONFIG, "quantization"]
    manifest = json.loads((tmp_path / "q8" / "source-repository.json").read_text())
    assert manifest["source_repository"] == "org/name"
    assert manifest["source_revision"] == "r1"
    assert manifest["source_sha256"] == hashlib.sha256(fixture()).hexdigest()
    assert manifest["bytes"] == FIXTURE_BYTES
    assert manifest["tensors"] == 15  # three each of four matrices, three that pass through


def test_the_command_runs_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    for name in ("torch", "safetensors", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this must not be imported')\n")
    source = write_source(tmp_path / "source", fixture())
    path = os.pathsep.join([str(tmp_path), str(CHECKOUT)])
    arguments = ("--source-repository", "a/b", "--source-revision", "c")
    ended = in_a_process(
        "convert", source, tmp_path / "q8", *arguments, env={**os.environ, "PYTHONPATH": path}
    )
    assert ended.returncode == 0, ended.stderr
    assert FIXTURE_SHA256 in ended.stdout
    lines = ended.stderr.splitlines()
    pattern = r"\[dflash2-convert\] phase=(quantize|finish) done=(\d+) total=(\d+) percent=(\d+)"
    phases = [re.fullmatch(pattern, line) for line in lines]
    assert all(phases), ended.stderr
    shown = [(found[1], int(found[4])) for found in phases if found]
    assert shown == sorted(shown, key=lambda each: (each[0] == "finish", each[1]))
    assert ("quantize", 100) in shown
    assert shown[-1] == ("finish", 100)


def test_the_origin_is_read_from_a_hub_path_or_a_file_and_else_asked_for(tmp_path: Path) -> None:
    def origin_of(source: Path) -> tuple[str, str]:
        destination = tmp_path / f"q8-{source.name}"
        manifest = convert_to(source, destination, None, lambda text: None, lambda *_: None)
        return manifest.source_repository, manifest.source_revision

    hub = tmp_path / "models--incoai--Qwen3.8-27B-DFlash2" / "snapshots" / "dedf8df6"
    assert origin_of(write_source(hub, fixture())) == ("incoai/Qwen3.8-27B-DFlash2", "dedf8df6")
    (tmp_path / "link").symlink_to(hub)
    assert origin_of(tmp_path / "link") == ("incoai/Qwen3.8-27B-DFlash2", "dedf8df6")
    source = write_source(tmp_path / "source", fixture())
    with pytest.raises(ModelError, match="give --source-repository and --source-revision"):
        origin_of(source)
    (source / "hf-origin.json").write_text('{"repository": "a/b", "revision": "v1"}')
    assert origin_of(source) == ("a/b", "v1")
    for origin in ('{"repository": "a/b"}', '{"repository": "a\\u0000b", "revision": "v1"}'):
        (source / "hf-origin.json").write_text(origin)
        with pytest.raises(ModelError, match="it needs repository and revision"):
            convert_to(source, tmp_path / "new", None, lambda text: None, lambda *_: None)


def sharded(source: Path) -> None:
    (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
    (source / "model.safetensors.index.json").write_text("{}")


def pickled(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def named_wrongly(source: Path) -> None:
    (source / "model.safetensors").write_bytes(pickle.dumps({"fc.weight": [0.5] * 100}))


def looping(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to(source / "model.safetensors")


def truncated(source: Path) -> None:
    os.truncate(source / "model.safetensors", (source / "model.safetensors").stat().st_size - 1)


def a_folder(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").mkdir()


def a_git_lfs_pointer(source: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:67fc\nsize 3848817896\n"
    (source / "model.safetensors").write_text(pointer)


def header_too_long(source: Path) -> None:
    (source / "model.safetensors").write_bytes((10**6).to_bytes(8, "little") + b"{}")


def of_another_kind(source: Path) -> None:
    (source / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')


def quantised_already(source: Path) -> None:
    (source / "config.json").write_text(json.dumps({**DRAFTER_CONFIG, "quantization": {"bits": 8}}))


def weights_of(*tensors: tuple[str, list[int], list[int]]) -> Callable[[Path], None]:
    return lambda source: (source / "model.safetensors").write_bytes(bf16_file(tensors)) and None


def float16(source: Path) -> None:
    weights = bf16_file([("fc.weight", [1, 64], [0] * 64)])
    (source / "model.safetensors").write_bytes(weights.replace(b'"BF16"', b'"F16" '))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (sharded, r"its weights are sharded \(model\.safetensors\.index\.json\)"),
        (pickled, r"has pytorch_model\.bin, a pickle, and no model\.safetensors"),
        (named_wrongly, "is a pickle, not safetensors"),
        (looping, r"model\.safetensors: cannot be opened \(Too many levels of symbolic links\)"),
        (a_folder, r"model\.safetensors: is no file; name the folder"),
        (a_git_lfs_pointer, "is a Git LFS pointer, not the file it points at"),
        (truncated, "it is truncated"),
        (header_too_long, "its header is said to have 1000000 bytes"),
        (float16, "fc.weight is F16; only BF16 checkpoints can be converted"),
        (of_another_kind, r"architectures is \['Qwen3ForCausalLM'\]"),
        (quantised_already, "is quantised already"),
        (
            weights_of(("fc.weight", [1, 96], [0] * 96)),
            "fc.weight has rows of 96, which is no multiple of 64",
        ),
        (weights_of(("fc.weight", [1, 64], [0x7FC0] * 64)), "fc.weight holds NaN or infinity"),
        (
            weights_of(
                ("candidate_selector.successor_codebook", [1, 64], [0] * 64),
                ("candidate_selector.successor_codebook.weight", [1, 64], [0] * 64),
            ),
            r"two tensors would become candidate_selector\.successor_codebook\.weight",
        ),
        (lambda source: (source / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda source: (source / "config.json").unlink(), "cannot be opened"),
        (lambda source: (source / "config.json").write_text("{"), "config.json: not JSON"),
        (lambda source: (source / "config.json").write_text("[" * 10**6), "config.json: not JSON"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_leaves_nothing(
    tmp_path: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    source = write_source(tmp_path / "source", fixture())
    spoil(source)
    with pytest.raises(ModelError, match=problem):
        convert(source, tmp_path / "q8")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_destination_must_be_new_and_in_a_folder_that_is_there(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())
    (tmp_path / "q8").mkdir()
    with pytest.raises(ModelError, match="q8: is there already"):
        convert(source, tmp_path / "q8")
    with pytest.raises(ModelError, match=r"nowhere: cannot be written \(No such file"):
        convert(source, tmp_path / "nowhere" / "q8")


def test_the_folder_that_one_is_in_is_no_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "source", fixture())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"^\.: is there already"):
        convert(source, Path("."))


def test_one_word_of_an_origin_is_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())
    ended = in_a_process("convert", source, tmp_path / "q8", "--source-revision", "r1")
    assert ended.returncode == 2
    assert "--source-repository and --source-revision go together" in ended.stderr


def test_free_space_is_checked_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "source", fixture())
    real, spare_bytes = os.statvfs(tmp_path), 16 * 1024**2
    free_blocks = (FIXTURE_BYTES + spare_bytes) // real.f_frsize  # rounded down: a little too few
    scarce = os.statvfs_result([*real[:4], free_blocks, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: scarce)
    with pytest.raises(ModelError, match="needs 16,791,024 bytes there and 16,"):
        convert(source, tmp_path / "q8")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_write_that_fails_half_way_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())
    arguments = ("--source-repository", "a/b", "--source-revision", "c")
    # A limit on the size of files stands for a disk that fills up: 8,192 of 13,808 bytes fit.
    ended = in_a_process(
        "convert",
        source,
        tmp_path / "q8",
        *arguments,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )
    assert ended.returncode == 2
    assert "q8: cannot be written (File too large); nothing was left behind" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", fixture())

    def touch(phase: str, done: int, total: int) -> None:
        if done < total:
            os.utime(source / "model.safetensors", ns=(1, done))

    with pytest.raises(ModelError, match="changed while it was converted"):
        convert(source, tmp_path / "q8", touch)

    def cut(phase: str, done: int, total: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(source / "model.safetensors", 3000)

    write_source(tmp_path / "source", fixture())
    with pytest.raises(ModelError, match="became shorter while it was converted"):
        convert(source, tmp_path / "q8", cut)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_hub_blob_must_have_the_hash_it_is_named_by(tmp_path: Path) -> None:
    source = write_source(tmp_path / "snapshot", fixture())
    blob = tmp_path / ("0" * 64)
    (source / "model.safetensors").rename(blob)
    (source / "model.safetensors").symlink_to(blob)
    with pytest.raises(ModelError, match=f"is named by the sha256 {'0' * 64}, but its bytes have"):
        convert(source, tmp_path / "q8")
    right = tmp_path / hashlib.sha256(fixture()).hexdigest()
    blob.rename(right)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to(right)
    assert convert(source, tmp_path / "q8").sha256 == FIXTURE_SHA256


# A first use that kills itself at the given step: a block or a phase of the conversion, or a file
# operation that Python announces (opening, renaming, removing, locking).
DYING = """
import os, signal, sys
from pathlib import Path
from engines.dflash2.conversion.cache import folder_to_load

steps, last = 0, int(sys.argv[2])

def step(*_):
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)

def watch(event, arguments):
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"):
        step()

sys.addaudithook(watch)
folder_to_load(Path(sys.argv[1]), {}, lambda text: None, step)
print(steps)
"""
NUM_DEATHS = 20


def test_a_process_killed_anywhere_leaves_nothing_or_a_whole_conversion(tmp_path: Path) -> None:
    def first_use(source: Path, last: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", DYING, str(source), str(last)]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)

    survivor = first_use(write_source(tmp_path / "survivor", fixture()), last=0)
    num_steps = int(survivor.stdout)
    assert num_steps > NUM_DEATHS
    expected = scalar.convert(fixture())
    outcomes = set()
    for death in range(1, NUM_DEATHS + 1):
        source = write_source(tmp_path / f"source-{death}", fixture())
        ended = first_use(source, last=num_steps * death // NUM_DEATHS)
        assert ended.returncode == -signal.SIGKILL
        converted = source / "q8g64"
        outcomes.add(converted.exists())
        if converted.exists():
            assert (converted / "model.safetensors").read_bytes() == expected
            assert json.loads((converted / "source-repository.json").read_text())["tensors"] == 15
        # Whatever it left, the next use ends well and leaves nothing but the conversion.
        folder_to_load(source, {}, lambda text: None, lambda *_: None)
        assert (converted / "model.safetensors").read_bytes() == expected
        left = {path.name for path in source.iterdir()}
        assert left == {"config.json", "model.safetensors", "q8g64", "q8g64.source-stat"}
    assert outcomes == {True, False}
