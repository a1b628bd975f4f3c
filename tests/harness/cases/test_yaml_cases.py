"""YAML cases: what a matrix file says must be what is run, or be refused before anything runs.

Each goes through `dflashbench plan`, as a user meets it; lines and columns are counted by hand.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from harness import cli, keys
from harness.adapters import ADAPTERS
from harness.adapters.base import Ask
from harness.config import load_matrix
from harness.plan import make_plan
from harness.report import format as fmt
from tests.harness import model_files

ASKED = '{"id": "%s", "kind": "code", "source": "ours", "licence": "CC0-1.0", "messages": %s}\n'

MATRIX = """\
name: demo
engines:
  bundled: {adapter: dflash2, command: ["{python}", "-m", "serve"]}
variants:
  - {name: plain, engine: bundled, target: model}
  - {name: fast, engine: bundled, target: model, drafter: {method: dflash2, model: drafter, k: 7}}
workloads:
  - {kind: concurrency, prompts: two, levels: [1, 2], max_tokens: 64}
held_constant: {kv_len: 2048}
sampling: {temperature: 0}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    (tmp_path / "prompts").mkdir()
    for name in ("model", "drafter"):
        model_files.nothing(tmp_path / name)
    lines = [
        ASKED % (f"p{n}", json.dumps([{"role": "user", "content": f"ask {n}"}])) for n in (1, 2)
    ]
    (tmp_path / "prompts" / "two.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(before: str, after: str) -> str:
    assert MATRIX.count(before) == 1, before
    return MATRIX.replace(before, after)


def loaded(project: Path, text: str) -> Any:
    (project / "m.yaml").write_text(text, encoding="utf-8")
    return load_matrix(project / "m.yaml")


def refused(project: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `dflashbench plan` says of it, after ending with 4."""
    (project / "m.yaml").write_text(text, encoding="utf-8")
    assert cli.main(["plan", "m.yaml"]) == 4
    return capsys.readouterr().err


def request_of(matrix: Any) -> dict[str, Any]:
    workload = matrix.workloads[0]
    ask = Ask(
        model="model",
        messages=workload.prompts.prompts[0].messages,
        max_tokens=workload.max_tokens,
        sampling=matrix.sampling,
        length=workload.length,
    )
    return json.loads(json.dumps(ADAPTERS["dflash2"].request_body(ask)))


# --- B99 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "NO", "On"])
def test_b99_a_word_that_yaml_makes_a_boolean_is_refused_with_its_place_and_the_advice_to_quote(
    project: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    said = refused(project, changed("kv_len: 2048", f"spec: {word}"), capsys)

    assert f"m.yaml:9:23: `{word}` is a boolean to YAML" in said
    assert f'write "{word}" for the word' in said


def test_b99_in_a_list_and_as_a_key_it_is_refused_too(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(project, changed("kv_len: 2048", "languages: [en, no, de]"), capsys)
    assert "m.yaml:9:33: `no` is a boolean to YAML" in said
    said = refused(project, MATRIX + "on: {concurrency: [1, 2]}\n", capsys)
    assert "m.yaml:11:1: `on` is a boolean to YAML" in said


def test_b99_a_quoted_word_reaches_the_engine_as_that_word_and_a_label_keeps_it(
    project: Path,
) -> None:
    matrix = loaded(
        project, changed("kv_len: 2048", 'spec: "on"').replace("name: plain", 'name: "no"')
    )
    variant = matrix.variants[0]
    argv = ADAPTERS["dflash2"].command(variant, matrix.held_constant, 8000)

    assert argv[argv.index("--spec") + 1] == "on"
    assert "True" not in argv
    assert variant.name == "no"
    assert make_plan(matrix).cells[0].variant == "no"


def test_b99_a_switch_takes_true_or_false_only(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = loaded(project, changed("temperature: 0", "temperature: 0, thinking: false"))
    assert request_of(off)["chat_template_kwargs"] == {"enable_thinking": False}
    said = refused(project, changed("temperature: 0", 'thinking: "off"'), capsys)
    assert "`thinking: off` must be true or false" in said


# --- B100 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"), [("1e-3", 0.001), ("5e-2", 0.05), ("1.0e-1", 0.1), ("1E0", 1.0)]
)
def test_b100_an_exponent_is_a_number_in_the_request_whether_yaml_knows_it_or_not(
    project: Path, written: str, value: float
) -> None:
    matrix = loaded(project, changed("temperature: 0", f"temperature: {written}"))

    temperature = request_of(matrix)["temperature"]
    assert isinstance(temperature, float)
    assert temperature == value


@pytest.mark.parametrize("written", ["1e3", "1.0e3", "1_000", "1000.0"])
def test_b100_a_whole_number_is_one_however_it_is_written(project: Path, written: str) -> None:
    matrix = loaded(project, changed("max_tokens: 64", f"max_tokens: {written}"))

    max_tokens = request_of(matrix)["max_tokens"]
    assert type(max_tokens) is int
    assert max_tokens == 1000


def test_b100_a_quoted_number_is_text_and_refused_where_a_number_belongs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(project, changed("temperature: 0", 'temperature: "1e-3"'), capsys)
    assert "m.yaml:10:25: `temperature: 1e-3` must be a number, without quotes" in said
    said = refused(project, changed("max_tokens: 64", "max_tokens: 1.5e0"), capsys)
    assert "`max_tokens: 1.5e0` must be a whole number" in said


# --- B101 -----------------------------------------------------------------------------------------


def test_b101_a_key_written_twice_is_refused_with_both_lines(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = "  bundled: {adapter: openai, kind: attach, url: 'http://127.0.0.1:1'}\n"
    said = refused(project, changed("variants:\n", f"{twice}variants:\n"), capsys)
    assert "m.yaml:4:3: `bundled` stands here and in line 3; keep one" in said
    said = refused(project, changed("k: 7}", "k: 7, k: 3}"), capsys)
    assert "`k` stands here and in line 6; keep one" in said


def test_b101_a_merge_key_is_no_duplicate(project: Path) -> None:
    base = "kv_len: 2048"
    text = changed(
        "  - {name: plain, engine: bundled, target: model}\n",
        "  - &plain {name: plain, engine: bundled, target: model}\n"
        "  - {<<: *plain, name: other, flags: {threads: 3}}\n",
    )
    matrix = loaded(project, text)

    assert base in text
    assert [variant.name for variant in matrix.variants] == ["plain", "other", "fast"]
    assert matrix.variants[1].flags == {"threads": 3}


# --- B104 -----------------------------------------------------------------------------------------

LABELS = ("12345678", "695e0514", "1.10", "2026-11-29", "0123", "1E6")


@pytest.mark.parametrize("label", LABELS)
def test_b104_a_name_that_looks_like_a_number_keeps_its_letters_to_the_last_table(
    project: Path, label: str
) -> None:
    matrix = loaded(project, changed("name: plain", f"name: {label}"))
    (cell, *_) = make_plan(matrix).cells

    assert cell.variant == label
    assert json.loads(json.dumps(cell.variant)) == label
    assert fmt.escape(cell.variant) == label


@pytest.mark.parametrize("label", [*LABELS, "25921e05", "0.80", "1e-3", "+5", ".5"])
@pytest.mark.parametrize("section", ["held_constant: {kv_len: 2048, %s}", "flags"])
def test_b104_a_setting_reaches_engine_manifest_and_page_letter_by_letter(
    project: Path, label: str, section: str
) -> None:
    """Wrong: 1.1, 2592100000.0, a datetime.date that no JSON takes."""
    if section == "flags":
        plain = "target: model}\n  - {name: fast"
        matrix = loaded(
            project, changed(plain, f"target: model, flags: {{tag: {label}}}}}\n  - {{name: fast")
        )
    else:
        text = changed("held_constant: {kv_len: 2048}", section % f"tag: {label}")
        matrix = loaded(project, text)
    settings = {**matrix.held_constant, **matrix.variants[0].flags}
    argv = ADAPTERS["dflash2"].command(matrix.variants[0], settings, 8000)

    assert argv[argv.index("--tag") + 1] == label
    assert str(settings["tag"]) == label
    assert str(json.loads(keys.canonical_json(settings))["tag"]) == label
    assert fmt.escape(f"tag {settings['tag']}") == f"tag {label}"


def test_b104_a_number_that_is_written_as_it_is_printed_is_one(project: Path) -> None:
    matrix = loaded(project, changed("kv_len: 2048", "a: 12345678, b: 0.8, c: 1_000, d: '7'"))

    assert matrix.held_constant == {"a": 12345678, "b": 0.8, "c": 1000, "d": "7"}


def test_b104_below_a_setting_numbers_are_json(project: Path) -> None:
    matrix = loaded(project, changed("kv_len: 2048", 'more: {a: 1.10, b: 1e-3, c: "1.10"}'))

    assert matrix.held_constant == {"more": {"a": 1.1, "b": 0.001, "c": "1.10"}}


def test_b104_two_versions_that_are_one_number_are_two_subjects(project: Path) -> None:
    def subject(tag: str) -> str:
        matrix = loaded(project, changed("kv_len: 2048", f"tag: {tag}"))
        return make_plan(matrix).cells[0].subject_key

    assert subject("1.10") != subject("1.1")
    assert subject("1.10") == subject('"1.10"')


@pytest.mark.parametrize("label", LABELS)
def test_b104_a_variable_of_the_environment_keeps_its_letters(project: Path, label: str) -> None:
    command = 'command: ["{python}", "-m", "serve"]'
    matrix = loaded(project, changed(command, f"{command}, environment: {{GIT_SHA: {label}}}"))

    assert matrix.variants[0].engine.environment == {"GIT_SHA": label}


@pytest.mark.parametrize("nothing", ["null", "~", ""])
def test_b104_a_model_of_nothing_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], nothing: str
) -> None:
    text = changed(
        "{name: plain, engine: bundled, target: model}",
        "{name: plain, engine: bundled, target: %s}",
    )
    assert "nothing stands here" in refused(project, text % nothing, capsys)


# --- B105 -----------------------------------------------------------------------------------------


def test_b105_a_level_written_twice_is_refused_before_the_first_request(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(project, changed("levels: [1, 2]", "levels: [1, 2, 1]"), capsys)
    assert "m.yaml:8:54: level 1 stands after 2; write each once, rising" in said


@pytest.mark.parametrize("again", ["7", "7.0"])
def test_b105_two_variants_that_are_the_same_are_refused_by_name(
    project: Path, capsys: pytest.CaptureFixture[str], again: str
) -> None:
    drafter = "drafter: {method: dflash2, model: drafter, k: %s}"
    text = changed(
        "variants:\n",
        f"variants:\n  - {{name: fast, engine: bundled, target: model, {drafter % again}}}\n",
    )
    assert "`name: fast` names two variants; rename one" in refused(project, text, capsys)


def test_b105_seven_is_the_same_depth_however_it_is_written(project: Path) -> None:
    def subject(k: str) -> str:
        return make_plan(loaded(project, changed("k: 7", f"k: {k}"))).cells[-1].subject_key

    assert subject("7") == subject("7.0")
    assert subject("7") != subject("6")


@pytest.mark.parametrize("k", ['"7"', "07", "7.5"])
def test_b105_what_only_looks_like_seven_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], k: str
) -> None:
    assert "must be a whole number" in refused(project, changed("k: 7", f"k: {k}"), capsys)


def test_b105_two_workloads_that_measure_the_same_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = "  - {kind: concurrency, prompts: two, levels: [1, 2], max_tokens: 64}\n"
    said = refused(project, changed(workload, workload + workload), capsys)
    assert "two workloads measure the same thing: concurrency, prompts two" in said
    assert "c = 1" in said
