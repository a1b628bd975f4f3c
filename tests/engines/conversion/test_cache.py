"""First use and every use after it: where a conversion lies, when it counts, who makes it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.cache import folder_to_load
from engines.dflash2.conversion.convert import claim

from . import scalar
from .fixture import DRAFTER_CONFIG, FIXTURE_BYTES, FIXTURE_SHA256, fixture, write_source
from .test_convert import CHECKOUT, convert

NOBODY = 65534


class Told:
    """What a use of a folder said and which phases it went through."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.phases: set[str] = set()

    def use(self, folder: Path, environment: dict[str, str] | None = None) -> Path:
        return folder_to_load(folder, environment or {}, self.texts.append, self._report)

    def _report(self, phase: str, done: int, total: int) -> None:
        self.phases.add(phase)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def converted(self) -> bool:
        return "quantize" in self.phases


def use(folder: Path, environment: dict[str, str] | None = None) -> tuple[Path, Told]:
    told = Told()
    return told.use(folder, environment), told


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", fixture())


def bytes_read_by(action: Callable[[], object]) -> int:
    """What this process asks the kernel to read meanwhile, from wherever it comes."""

    def count() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    before = count()
    action()
    return count() - before


def test_the_first_use_converts_and_the_second_reads_no_weights(tmp_path: Path) -> None:
    rows = 8192  # of 64 columns: a megabyte of weights, against kilobytes of headers
    weights = scalar.assemble([("fc.weight", "BF16", [rows, 64], bytes(rows * 128))])
    source = write_source(tmp_path / "source", weights)
    folder, told = use(source)
    assert folder == source / "q8g64"
    assert told.converted
    assert bytes_read_by(lambda: use(source)) < 32_768
    again, told = use(source)
    assert again == folder
    assert told.texts == [f"using the conversion in {folder}"]
    assert told.phases == set()


def test_the_stamp_has_the_published_form(source: Path) -> None:
    use(source)
    found = (source / "model.safetensors").stat()
    stamp = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
    expected = f"{stamp} {hashlib.sha256(fixture()).hexdigest()}\n"
    assert (source / "q8g64.source-stat").read_text() == expected


def test_a_lost_stamp_costs_one_hash_and_no_conversion(source: Path) -> None:
    use(source)
    (source / "q8g64.source-stat").unlink()
    _, told = use(source)
    assert told.phases == {"hash-source"}
    assert use(source)[1].phases == set()
    (source / "q8g64.source-stat").write_text("half a li")
    assert use(source)[1].phases == {"hash-source"}


def test_a_cache_directory_is_used_under_the_name_of_the_origin(
    source: Path, tmp_path: Path
) -> None:
    environment = {"DFLASH2_CACHE_DIR": str(tmp_path / "new" / "cache")}
    (source / "hf-origin.json").write_text('{"repository": "org/na:me", "revision": "v1"}')
    folder, told = use(source, environment)
    assert folder == tmp_path / "new" / "cache" / "org-na-me@v1-q8g64"
    assert told.converted
    assert sha256_of(folder) == FIXTURE_SHA256
    assert not (source / "q8g64").exists()
    assert not use(source, environment)[1].converted


def test_a_cache_directory_may_begin_with_a_tilde(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # systemd and .env files expand no tilde
    folder, _ = use(source, {"DFLASH2_CACHE_DIR": "~/drafters"})
    assert folder.parent == tmp_path / "home" / "drafters"


def test_without_an_origin_the_cache_is_named_by_folder_and_path(
    source: Path, tmp_path: Path
) -> None:
    value = 0xCBF29CE484222325  # FNV-1a with 64 bits, of the weights' absolute path
    for byte in str(source / "model.safetensors").encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    folder, _ = use(source, {"DFLASH2_CACHE_DIR": str(tmp_path / "cache")})
    assert folder.name == f"source-{value:016x}-q8g64"
    manifest = json.loads((folder / "source-repository.json").read_text())
    assert (manifest["source_repository"], manifest["source_revision"]) == ("source", "unknown")


def test_a_hub_snapshot_needs_no_stamp_because_its_blob_is_named_by_the_hash(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models--org--name"
    source = write_source(repository / "snapshots" / "abc", fixture())
    blob = repository / "blobs" / hashlib.sha256(fixture()).hexdigest()
    blob.parent.mkdir()
    (source / "model.safetensors").rename(blob)
    (source / "model.safetensors").symlink_to(blob)
    folder, _ = use(source)
    manifest = json.loads((folder / "source-repository.json").read_text())
    assert (manifest["source_repository"], manifest["source_revision"]) == ("org/name", "abc")
    os.utime(blob)  # a stamp would not fit any more
    assert use(source)[1].phases == set()


def test_a_conversion_that_lse_made_is_reused_and_the_log_says_so(source: Path) -> None:
    convert(source, source / "lse-q8g64")
    folder, told = use(source)
    assert folder == source / "lse-q8g64"
    assert not told.converted
    assert told.texts == [f"using the conversion in {folder}"]
    assert not (source / "q8g64").exists()


def test_an_invalid_one_of_lse_is_told_and_left_alone(source: Path) -> None:
    convert(source, source / "lse-q8g64")
    (source / "lse-q8g64" / "config.json").write_text("{}")
    folder, told = use(source)
    assert folder == source / "q8g64"
    assert "lse-q8g64 is not used: its config.json is not the source's" in told.text
    assert (source / "lse-q8g64" / "config.json").read_text() == "{}"


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "source-repository.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    later_ns = (folder / "source-repository.json").stat().st_mtime_ns + 1
    os.utime(weights, ns=(later_ns, later_ns))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            lambda q8: os.truncate(q8 / "model.safetensors", 9000),
            "its weights have 9000 bytes",
        ),
        (lambda q8: (q8 / "model.safetensors").unlink(), "is no whole conversion"),
        (lambda q8: (q8 / "source-repository.json").unlink(), "is no whole conversion"),
        (lambda q8: (q8 / "source-repository.json").write_text("[]"), "is no whole conversion"),
        (lambda q8: (q8 / "config.json").write_text("{}"), "its config.json is not the source's"),
        (lambda q8: edit_manifest(q8, format="Q4"), "its format is 'Q4'"),
        (lambda q8: edit_manifest(q8, source_sha256="0" * 64), "the source is another one now"),
        (edit_weights, "its weights have been edited"),
    ],
)
def test_a_spoilt_conversion_is_made_again_and_that_is_said(
    source: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    folder, _ = use(source)
    spoil(folder)
    again, told = use(source)
    assert again == folder
    assert f"{folder} is not used: {problem}" in told.text
    assert f"converting {source / 'model.safetensors'} to Q8 in {folder}" in told.text
    assert sha256_of(folder) == FIXTURE_SHA256
    assert use(source)[1].phases == set()


def test_a_changed_source_is_converted_again_and_that_is_said(source: Path) -> None:
    folder, _ = use(source)
    changed = bytearray(fixture())
    changed[-1] ^= 1
    (source / "model.safetensors").write_bytes(changed)
    _, told = use(source)
    assert told.phases == {"hash-source", "quantize", "finish"}
    assert "the source is another one now" in told.text
    assert (folder / "model.safetensors").read_bytes() == scalar.convert(bytes(changed))


def test_a_touched_source_of_the_same_bytes_is_hashed_once(source: Path) -> None:
    use(source)
    os.utime(source / "model.safetensors")
    assert use(source)[1].phases == {"hash-source"}
    assert use(source)[1].phases == set()


def test_touched_weights_of_the_same_bytes_are_vouched_for_once(source: Path) -> None:
    folder, _ = use(source)
    manifest, weights = folder / "source-repository.json", folder / "model.safetensors"
    later_ns = manifest.stat().st_mtime_ns + 1
    os.utime(weights, ns=(later_ns, later_ns))
    assert bytes_read_by(lambda: use(source)) > FIXTURE_BYTES
    assert not use(source)[1].converted
    assert manifest.stat().st_mtime_ns > later_ns
    assert bytes_read_by(lambda: use(source)) < FIXTURE_BYTES


def test_weights_of_another_conversion_are_found_out_although_they_are_older(
    source: Path,
) -> None:
    folder, _ = use(source)
    weights, manifest = folder / "model.safetensors", folder / "source-repository.json"
    spoilt = bytearray(weights.read_bytes())
    spoilt[-1] ^= 1
    while weights.stat().st_ctime_ns <= manifest.stat().st_ctime_ns:  # until that clock ticks
        weights.write_bytes(spoilt)
        os.utime(weights, ns=(1, 1))
    _, told = use(source)
    assert "its weights have been edited" in told.text
    assert sha256_of(folder) == FIXTURE_SHA256


def test_a_spoilt_conversion_is_looked_at_and_told_once(source: Path) -> None:
    folder, _ = use(source)
    edit_manifest(folder, format="Q4")
    assert use(source)[1].text.count("is not used") == 1


def test_a_stamp_that_cannot_be_written_stops_nothing_and_is_told(source: Path) -> None:
    use(source)
    stamp = source / "q8g64.source-stat"
    stamp.unlink()
    stamp.mkdir()
    folder, told = use(source)
    assert folder == source / "q8g64"
    assert told.phases == {"hash-source"}
    assert f"{stamp} cannot be written (Is a directory)" in told.text


def test_a_link_in_the_place_where_conversions_are_prepared_is_not_followed(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    (source / ".q8g64.partial").symlink_to(tmp_path / "mine")
    with pytest.raises(ModelError, match=r"\.q8g64\.partial: stands where a conversion is prep"):
        use(source)
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear diary"
    (source / ".q8g64.partial").unlink()
    (source / ".q8g64.partial").write_text("a file")
    with pytest.raises(ModelError, match=r"cannot be used \(File exists\); move it away"):
        use(source)


def test_a_folder_given_as_two_dots_has_a_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "within").mkdir()
    monkeypatch.chdir(source / "within")
    folder, _ = use(Path(".."), {"DFLASH2_CACHE_DIR": str(tmp_path / "cache")})
    assert folder.name.startswith("source-")
    manifest = json.loads((folder / "source-repository.json").read_text())
    assert manifest["source_repository"] == "source"


def test_a_folder_of_something_else_in_the_place_is_not_deleted(source: Path) -> None:
    (source / "q8g64").mkdir()
    (source / "q8g64" / "diary.txt").write_text("mine")
    with pytest.raises(ModelError, match="q8g64: stands where the conversion belongs"):
        use(source)
    assert (source / "q8g64" / "diary.txt").read_text() == "mine"


def test_autoconvert_0_loads_bf16_as_it_is(source: Path) -> None:
    folder, told = use(source, {"DFLASH2_AUTOCONVERT": "0"})
    assert folder == source
    assert told.texts == []
    assert not (source / "q8g64").exists()
    with pytest.raises(ModelError, match="DFLASH2_AUTOCONVERT is 'no'; write 0"):
        use(source, {"DFLASH2_AUTOCONVERT": "no"})


def test_what_needs_no_conversion_is_loaded_as_it_is(source: Path) -> None:
    converted, _ = use(source)
    assert use(converted)[0] == converted
    float32 = scalar.assemble([("fc.weight", "F32", [1, 64], bytes(256))])
    plain = write_source(source.parent / "plain", float32)
    assert use(plain)[0] == plain


def test_what_cannot_be_converted_names_the_way_out(source: Path) -> None:
    weights = scalar.assemble([("fc.weight", "BF16", [1, 32], bytes(64))])
    (source / "model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match=r"rows of 32.*; DFLASH2_AUTOCONVERT=0 loads it unconv"):
        use(source)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can enter: pytest's own belong to one."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Without the superuser's right to write everywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def test_a_conversion_in_a_folder_that_cannot_be_written_needs_no_other_place(
    public_folder: Path, ordinary_user: None
) -> None:
    source = write_source(public_folder / "source", fixture())
    use(source)
    (source / "q8g64.source-stat").unlink()
    source.chmod(0o555)
    folder, told = use(source, {"XDG_CACHE_HOME": str(source / "nowhere")})
    source.chmod(0o755)
    assert folder == source / "q8g64"
    assert "cannot be written (Permission denied), so the next start hashes" in told.text


def test_a_conversion_of_somebody_else_that_cannot_be_replaced_is_told(
    public_folder: Path, ordinary_user: None
) -> None:
    source = write_source(public_folder / "source", fixture())
    (source / "q8g64").mkdir(mode=0o000)
    with pytest.raises(ModelError, match=r"q8g64: cannot be replaced \(Permission denied\)"):
        use(source)


def test_a_source_that_cannot_be_written_uses_the_users_cache(
    public_folder: Path, ordinary_user: None
) -> None:
    source = write_source(public_folder / "source", fixture())
    source.chmod(0o555)
    environment = {"XDG_CACHE_HOME": str(public_folder / "xdg")}
    folder, told = use(source, environment)
    assert folder.parent == public_folder / "xdg" / "dflash2"
    assert f"{source} cannot be written, so its conversion goes to a cache directory" in told.text
    assert sha256_of(folder) == FIXTURE_SHA256
    again, told = use(source, environment)
    assert again == folder
    assert told.phases == set()
    source.chmod(0o755)


def test_who_comes_second_waits_and_takes_what_the_first_one_made(source: Path) -> None:
    destination, first, second = source / "q8g64", Told(), Told()
    is_waiting, found = threading.Event(), []

    def come_second() -> None:
        def say(text: str) -> None:
            second.texts.append(text)
            is_waiting.set()

        found.append(folder_to_load(source, {}, say, second._report))

    with claim(destination, lambda: None) as partial:
        thread = threading.Thread(target=come_second)
        thread.start()
        assert is_waiting.wait(timeout=60)
        # The first one's work, done while the second stands at the door.
        first.use(source, {"DFLASH2_CACHE_DIR": str(source.parent / "cache")})
        made = next((source.parent / "cache").glob("*-q8g64"))
        shutil.copytree(made, partial, dirs_exist_ok=True)
        partial.rename(destination)
    thread.join(timeout=60)
    assert found == [destination]
    assert second.texts == [
        f"another process is converting to {destination}; waiting for it",
        f"using the conversion in {destination}",
    ]
    assert not second.converted


def test_of_two_processes_one_converts(source: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from engines.dflash2.conversion.cache import folder_to_load\n"
        "print(folder_to_load(Path(sys.argv[1]), {}, print, lambda *_: None))\n"
    )
    command = [sys.executable, "-c", program, str(source)]
    processes = [
        subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum("converting " in output.replace("is converting", "") for output in outputs) == 1
    assert {output.splitlines()[-1] for output in outputs} == {str(source / "q8g64")}
    assert sha256_of(source / "q8g64") == FIXTURE_SHA256
    assert DRAFTER_CONFIG.items() <= json.loads((source / "q8g64/config.json").read_text()).items()
