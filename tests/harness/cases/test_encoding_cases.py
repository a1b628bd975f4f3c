"""ENC cases: a prompt is the file's, whatever line ends a checkout gave it."""

import json
from pathlib import Path

from harness.prompts import load_prompt_set

CHECKOUT = Path(__file__).parents[3]


def line(text: str, prompt_id: str = "p1") -> str:
    return json.dumps(
        {
            "id": prompt_id,
            "kind": "prose – 中文",
            "messages": [{"role": "user", "content": text}],
            "source": "made for this test",
            "licence": "CC0-1.0",
        },
        ensure_ascii=False,
    )


# --- B124 -----------------------------------------------------------------------------------------

UNIX, WINDOWS = "def f():\n    return 1\n", "def f():\r\n    return 1\r\n"


def written(path: Path, name: str, data: bytes) -> Path:
    (path / f"{name}.jsonl").write_bytes(data)
    return path / f"{name}.jsonl"


def test_b124_a_checkout_with_windows_line_ends_sends_and_hashes_the_same(tmp_path: Path) -> None:
    unix = load_prompt_set(written(tmp_path, "unix", f"{line(UNIX)}\n{line('b', 'p2')}\n".encode()))
    windows = load_prompt_set(
        written(tmp_path, "windows", f"{line(UNIX)}\r\n{line('b', 'p2')}\r\n".encode())
    )

    assert windows.sha256 == unix.sha256
    assert windows.prompts == unix.prompts
    assert "\r" not in windows.prompts[0].messages[0]["content"]


def test_b124_line_ends_in_the_prompt_itself_are_sent_as_they_are_and_are_another_hash(
    tmp_path: Path,
) -> None:
    unix = load_prompt_set(written(tmp_path, "unix", f"{line(UNIX)}\n".encode()))
    windows = load_prompt_set(written(tmp_path, "windows", f"{line(WINDOWS)}\n".encode()))

    assert windows.prompts[0].messages[0]["content"] == WINDOWS
    assert windows.sha256 != unix.sha256


def test_b124_prompts_are_checked_out_alike_everywhere() -> None:
    attributes = (CHECKOUT / ".gitattributes").read_text(encoding="utf-8").splitlines()

    assert "prompts/*.jsonl text eol=lf" in attributes
    for path in sorted((CHECKOUT / "prompts").glob("*.jsonl")):
        assert b"\r" not in path.read_bytes(), path.name
