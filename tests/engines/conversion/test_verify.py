"""`verify`: what is compared, what is told, and with which exit code it ends."""

import os
import shutil
from pathlib import Path

import pytest

from engines.dflash2.__main__ import main
from engines.dflash2.conversion import published
from engines.dflash2.conversion.cache import convert_to
from engines.dflash2.conversion.checkpoint import Origin

from .fixture import fixture, write_source
from .test_convert import convert

SOURCE = os.environ.get("DFLASH2_CONVERT_SOURCE")
REFERENCE = os.environ.get("DFLASH2_CONVERT_REFERENCE")


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["verify", *map(str, arguments)])
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if not line.startswith("[dflash2-conv")]
    return code, captured.out + "\n".join(errors)


def test_a_conversion_is_held_against_its_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(write_source(tmp_path / "source", fixture()), tmp_path / "q8")
    code, said = verify(capsys, tmp_path / "q8")
    assert code == 0
    assert said == (
        "manifest's format: ok\nmanifest's bytes: ok\nmanifest's sha256: ok\n"
        "manifest's tensors: ok\n"
    )
    weights = tmp_path / "q8" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, said = verify(capsys, tmp_path / "q8")
    assert code == 1
    assert "manifest's sha256: b30b5547" in said
    assert said.count("ok") == 3


def test_a_reference_must_have_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source", fixture())
    convert(source, tmp_path / "q8")
    shutil.copytree(tmp_path / "q8", tmp_path / "reference")
    code, said = verify(capsys, tmp_path / "q8", "--reference", tmp_path / "reference")
    assert code == 0
    assert said.count("against the reference: ok") == 3
    weights = tmp_path / "reference" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[1234] ^= 1
    weights.write_bytes(data)
    code, said = verify(capsys, tmp_path / "q8", "--reference", tmp_path / "reference")
    assert code == 1
    assert f"model.safetensors against the reference: differs from {weights} at byte 1234" in said
    weights.write_bytes(bytes(data) + b"!")
    data[1234] ^= 1
    weights.write_bytes(bytes(data[:-2]))
    code, said = verify(capsys, tmp_path / "q8", "--reference", tmp_path / "reference")
    assert f"at byte {len(data) - 2}" in said


def test_who_claims_to_be_the_published_checkpoint_must_have_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source", fixture(), published.CONFIG)
    code, said = verify(capsys, source)
    assert code == 1
    assert said.startswith(f"published checkpoint: {published.SOURCE_SHA256} is expected, a3afbf58")
    assert said.endswith("published config: ok\n")


def test_the_published_weights_need_the_published_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "source", fixture(), {**published.CONFIG, "use_cache": False})
    fixtures = "a3afbf58fc5c3e91c0cecf0e3be2717d474c620395bd81f4feb3a9b8afb99d3f"
    monkeypatch.setattr(published, "SOURCE_SHA256", fixtures)  # as if it were the published one
    code, said = verify(capsys, source)
    assert code == 1
    assert said.startswith("published checkpoint: ok\npublished config: 873e3556")


def test_who_claims_to_be_converted_from_it_must_have_the_conversions_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(write_source(tmp_path / "source", fixture()), tmp_path / "q8")
    manifest = tmp_path / "q8" / "source-repository.json"
    theirs = "a3afbf58fc5c3e91c0cecf0e3be2717d474c620395bd81f4feb3a9b8afb99d3f"
    manifest.write_text(manifest.read_text().replace(theirs, published.SOURCE_SHA256))
    code, said = verify(capsys, tmp_path / "q8")
    assert code == 1
    assert f"published conversion: {published.CONVERTED_SHA256} is expected, b30b5547" in said
    assert f"published config: {published.CONVERTED_CONFIG_SHA256} is expected, " in said


def test_nothing_to_compare_with_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = verify(capsys, write_source(tmp_path / "source", fixture()))
    assert code == 2
    assert "there is nothing to compare it with" in said


@pytest.mark.external
@pytest.mark.skipif(SOURCE is None, reason="DFLASH2_CONVERT_SOURCE is not set")
def test_the_published_checkpoint_converts_to_the_published_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SOURCE is not None
    origin = Origin(
        repository="incoai/Qwen3.8-27B-DFlash2", revision="dedf8df68adfb1afeaf7b7480c0a0243108177b4"
    )
    convert_to(Path(SOURCE), tmp_path / "q8", origin, lambda text: None, lambda *_: None)
    reference = () if REFERENCE is None else ("--reference", REFERENCE)
    code, said = verify(capsys, tmp_path / "q8", *reference)
    assert code == 0, said
    assert "published conversion: ok" in said
    assert "published checkpoint: ok" in verify(capsys, SOURCE)[1]
