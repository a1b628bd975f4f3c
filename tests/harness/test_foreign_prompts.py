"""Prompt sets of others, in the shapes in which they are published."""

import json
from pathlib import Path

import pytest

from harness import cli, foreign_prompts
from harness.errors import ConfigError
from harness.prompts import load_prompt_set, prompt_lines
from harness.records import Prompt

MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a post.", "Rewrite it."]}
SPEED_BENCH = {
    "question_id": "a1",
    "category": "coding",
    "turns": [{"role": "user", "content": "Sort a list."}],
}
SHAREGPT = {
    "id": "QWJhYvA_0",
    "conversations": [{"from": "gpt", "value": "Hello!"}, {"from": "human", "value": "Why?"}],
}


def imported(path: Path, text: str, shape: str) -> tuple[Prompt, ...]:
    file = path / "file.jsonl"
    file.write_text(text, encoding="utf-8")
    return foreign_prompts.read(file, shape, source="there", licence="CC-BY-4.0", publish=False)


@pytest.mark.parametrize(
    ("shape", "record", "expected"),
    [
        ("mt-bench", MT_BENCH, ("81", "writing", "Write a post.")),
        ("spec-bench", MT_BENCH, ("81", "writing", "Write a post.")),
        ("speed-bench", SPEED_BENCH, ("a1", "coding", "Sort a list.")),
        ("sharegpt", SHAREGPT, ("QWJhYvA_0", "chat", "Why?")),
    ],
)
def test_the_first_turn_becomes_a_prompt(
    tmp_path: Path, shape: str, record: dict[str, object], expected: tuple[str, str, str]
) -> None:
    (prompt,) = imported(tmp_path, json.dumps(record) + "\n", shape)

    assert (prompt.prompt_id, prompt.kind, prompt.messages[0]["content"]) == expected
    assert (prompt.source, prompt.licence, prompt.publish) == ("there", "CC-BY-4.0", False)


def test_a_file_may_be_one_json_array(tmp_path: Path) -> None:
    found = imported(tmp_path, json.dumps([SHAREGPT, {**SHAREGPT, "id": "2"}]), "sharegpt")

    assert [prompt.prompt_id for prompt in found] == ["QWJhYvA_0", "2"]


def test_a_conversation_in_which_no_human_speaks_is_no_prompt(tmp_path: Path) -> None:
    record = {"id": "1", "conversations": [{"from": "gpt", "value": "Hello!"}]}

    assert imported(tmp_path, json.dumps(record), "sharegpt") == ()


def test_another_shape_is_refused_with_the_record_and_the_shapes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record 2 is not of shape mt-bench.*sharegpt"):
        imported(tmp_path, "\n".join(map(json.dumps, [MT_BENCH, SHAREGPT])), "mt-bench")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    prompts = imported(tmp_path, json.dumps(MT_BENCH), "mt-bench")
    path = tmp_path / "mt.jsonl"
    path.write_bytes(prompt_lines(prompts))

    assert load_prompt_set(path).prompts == prompts


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "there is no prompt to write"), (f"{json.dumps(MT_BENCH)}\n" * 2, "has the same id")],
    ids=["no record", "one record twice"],
)
def test_an_import_that_is_no_set_leaves_the_set_that_is_there_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    (tmp_path / "given.jsonl").write_text(content)
    out = tmp_path / "mine.jsonl"
    out.write_text("precious")
    words = ["--shape", "mt-bench", "--source", "there", "--licence", "CC0-1.0"]

    assert cli.main(["prompts", "import", str(tmp_path / "given.jsonl"), str(out), *words]) == 4

    assert said in capsys.readouterr().err
    assert out.read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "given.jsonl").write_text(json.dumps(MT_BENCH))
    out = tmp_path / "nowhere" / "mine.jsonl"
    words = ["--shape", "mt-bench", "--source", "there", "--licence", "CC0-1.0"]

    assert cli.main(["prompts", "import", str(tmp_path / "given.jsonl"), str(out), *words]) == 3

    assert f"{out}: No such file or directory" in capsys.readouterr().err


def test_the_sets_that_the_project_ships_say_their_source_and_licence() -> None:
    folder = Path(__file__).parents[2] / "prompts"

    for path in folder.glob("*.jsonl"):
        for prompt in load_prompt_set(path).prompts:
            assert prompt.source, path
            assert prompt.licence, path
            assert prompt.publish, path
