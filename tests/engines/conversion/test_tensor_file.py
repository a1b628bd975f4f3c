"""Headers that lie are found out before anything is read; each error says what is wrong."""

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.tensor_file import read_tensor_file


def written(path: Path, header: Any, num_data_bytes: int = 0, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + bytes(num_data_bytes))
    return path


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "BF16") -> dict:
    shape = [(end - begin) // 2] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_come_in_the_order_of_their_bytes_and_metadata_is_none(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry(6, 10),
        "a": entry(0, 6),
        "c": entry(10, 10),
    }
    file = read_tensor_file(written(tmp_path / "f", header, num_data_bytes=10))
    assert [tensor.name for tensor in file.tensors] == ["a", "b", "c"]
    assert file.tensors[1].shape == (2,)
    assert file.data_offset == file.num_bytes - 10


@pytest.mark.parametrize(
    ("header", "num_data_bytes", "problem"),
    [
        ({"a": entry(0, 6), "b": entry(4, 8)}, 8, "b overlaps the tensor before it"),
        ({"a": entry(0, 6), "b": entry(8, 12)}, 12, "2 bytes before b are nobody's"),
        ({"a": entry(2, 6)}, 6, "2 bytes before a are nobody's"),
        ({"a": entry(0, 6)}, 7, "1 bytes at its end are nobody's"),
        ({"a": entry(0, 6)}, 5, "truncated: its tensors need 6 bytes and 5 are there"),
        ({"a": entry(0, 6, shape=[4])}, 6, r"BF16 \[4\], needs 8 bytes and has 6"),
        ({"a": entry(0, 6, shape=[10**4000] * 3)}, 6, "a is larger than any file"),
        ({"a": "x" * 10**5}, 0, r"it is 'x{12}\.\.\.x{13}'"),
        ({"a": entry(6, 0, shape=[3])}, 6, r"needs 6 bytes and has -6"),
        ({"a": entry(0, 4, shape=[-1, -2])}, 4, r"a has shape \[-1, -2\]"),
        ({"a": entry(0, 2, shape=[True])}, 2, r"a has shape \[True\]"),
        ({"a": entry(0, 4, dtype="BF17")}, 4, "a has the unknown dtype 'BF17'"),
        ({"a": {"dtype": "BF16", "shape": [1]}}, 2, "a needs dtype, shape and data_offsets"),
        ({"a": [0, 2]}, 2, "a needs dtype, shape and data_offsets"),
        (b'{"a": 1, "a": 2}', 0, "a name stands twice"),
        (b"[1, 2]", 0, "its header holds list, not an object"),
        (b"{nonsense", 0, "its header is not JSON"),
        (b"\xff\xfe", 0, "its header is not JSON"),
    ],
)
def test_a_header_that_lies_is_refused(
    tmp_path: Path, header: Any, num_data_bytes: int, problem: str
) -> None:
    path = written(tmp_path / "f", header, num_data_bytes)
    with pytest.raises(ModelError, match=f"f: not a sound safetensors file: .*{problem}"):
        read_tensor_file(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "f", {"a": entry(0, 0)}, length=5000)
    with pytest.raises(ModelError, match="is said to have 5000 bytes, but the file has"):
        read_tensor_file(path)
    path.write_bytes(b"\x01")
    with pytest.raises(ModelError, match="but the file has 1 in all"):
        read_tensor_file(path)


def test_a_header_beyond_the_formats_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse: nothing but the length is really there
    with pytest.raises(ModelError, match="100000001 bytes, above 100000000"):
        read_tensor_file(path)


def test_pickles_are_called_by_their_name(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(pickle.dumps({"weight": list(range(100))}))
    with pytest.raises(ModelError, match="is a pickle, not safetensors"):
        read_tensor_file(path)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", b"")
    path.write_bytes(archive.getvalue())
    with pytest.raises(ModelError, match=r"is a zip archive, as torch\.save writes it"):
        read_tensor_file(path)


def test_a_header_whose_length_looks_like_a_pickle_is_a_header(tmp_path: Path) -> None:
    header = b"{}" + b" " * (0x0280 - 2)  # pickles of protocol 2 begin with the bytes 80 02
    path = written(tmp_path / "f", header)
    assert path.read_bytes().startswith(b"\x80\x02")
    assert read_tensor_file(path).tensors == ()


def test_a_loop_of_links_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to(tmp_path / "g")
    (tmp_path / "g").symlink_to(tmp_path / "f")
    with pytest.raises(ModelError, match=r"f: cannot be opened \(Too many levels of symbolic"):
        read_tensor_file(tmp_path / "f")
