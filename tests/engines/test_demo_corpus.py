"""The demo corpus: right answers, the same again from its seed, and evaluation kept apart."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from engines.demo.train.answers import agrees, parses
from engines.demo.train.corpus import packages
from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.split import (
    GENERATORS,
    HELD_OUT_OF_256,
    KINDS,
    LONG_GENERATORS,
    Counts,
    generated,
    generated_long,
    held_out,
    late_training,
    training,
    unseen,
)

PROMPT_FILES = ("demo5", "demo5_eval", "demo5_warmup")
EQUATION = re.compile(r"(?:\d+ [-+*/] )+\d+ = \d+(?: [-+*/] \d+)*(?: = \d+)?")


def sample(kind: str, count: int = 300) -> list[Document]:
    """Training documents, with as many long ones where the kind has such."""
    found = [generated(kind, "train", number) for number in range(count)]
    if kind in LONG_GENERATORS:
        found += [generated_long(kind, "train", number) for number in range(count)]
    return found


def prompt_lines(name: str) -> list[dict]:
    path = Path("prompts", f"{name}.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", ["code", "refactor", "edit"])
def test_every_generated_file_parses(kind: str) -> None:
    for document in sample(kind):
        assert parses(document.answer), document.answer


@pytest.mark.parametrize("kind", ["refactor", "edit"])
def test_a_change_changes_something(kind: str) -> None:
    for document in sample(kind):
        assert document.answer not in document.user, document.user


def test_every_written_equation_of_arithmetic_is_true() -> None:
    for document in sample("arithmetic"):
        found = EQUATION.findall(document.answer)
        assert found, document.answer
        for equation in found:
            values = {
                eval(compile(ast.parse(side, mode="eval"), "side", "eval"))
                for side in equation.split(" = ")
            }
            assert len(values) == 1, document.answer


def test_an_arithmetic_answer_ends_with_the_number_of_its_last_step() -> None:
    for document in sample("arithmetic"):
        answer = document.answer.rsplit("Answer: ", 1)[1]
        last_step = document.answer.splitlines()[-3]
        assert answer in re.findall(r"\d+", last_step), document.answer


def test_prose_leaves_no_slot_unfilled() -> None:
    for document in sample("prose"):
        assert "{" not in document.user + document.answer


def test_measured_answers_are_long_enough() -> None:
    for kind in KINDS:
        found = [generated(kind, "evaluation", number) for number in range(200)]
        lengths = sorted(len(document.answer) for document in found)
        assert lengths[100] > 300, kind  # characters of the median answer


def test_the_same_seed_gives_the_same_corpus_in_another_process() -> None:
    """Set and dictionary order must not enter: the other process hashes strings differently."""
    program = (
        "import hashlib; from engines.demo.train.corpus.split import KINDS, generated;"
        "print(hashlib.sha256(repr([generated(k, 'train', n) for k in KINDS for n in range(40)])"
        ".encode()).hexdigest())"
    )
    here = repr([generated(kind, "train", number) for kind in KINDS for number in range(40)])
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    there = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert there.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_no_prompt_is_a_training_question(
    every_training_question: frozenset[str],
) -> None:
    for name in PROMPT_FILES:
        for line in prompt_lines(name):
            assert line["messages"][0]["content"] not in every_training_question, line["id"]


@pytest.fixture(scope="module")
def every_training_question() -> frozenset[str]:
    """Regenerated, but for natural documents, whose side of the split their name decides."""
    return frozenset(
        generated(kind, "train", number).user
        for kind in KINDS
        for number in range(getattr(Counts(), kind))
    ) | {document.user for document in late_training(Counts())}


def test_every_generated_prompt_is_what_its_source_says() -> None:
    for name in PROMPT_FILES:
        for line in prompt_lines(name):
            if line["source"].startswith("generated: "):
                _, split, kind, number = line["source"].removeprefix("generated: ").split(":")
                assert split in ("evaluation", "warmup")
                assert generated(kind, split, int(number)).user == line["messages"][0]["content"]


def test_every_package_prompt_is_held_out_by_its_name() -> None:
    sources = [line["source"] for line in prompt_lines("demo5_eval")]
    named = [source for source in sources if source.startswith("debian:")]
    assert named
    for source in named:
        assert hashlib.sha256(source.encode()).digest()[0] < HELD_OUT_OF_256


def test_training_takes_no_held_out_package(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [
        Document(kind="prose", user=f"What is p{n}?", answer="Text.", source=f"debian:p{n}")
        for n in range(500)
    ]
    monkeypatch.setattr(packages, "documents", lambda: everything)
    monkeypatch.setattr("engines.demo.train.corpus.stdlib.documents", list)
    none = Counts(code=0, prose=0, arithmetic=0, refactor=0, edit=0, packages=500)
    chosen = list(training(none))
    assert 400 < len(chosen) < 500  # 16 of 256 names are held out
    assert not any(held_out(document) for document in chosen)


def test_warmup_evaluation_and_quickstart_prompts_differ() -> None:
    texts = [line["messages"][0]["content"] for name in PROMPT_FILES for line in prompt_lines(name)]
    assert len(texts) == len(set(texts))


def test_the_prompt_sets_have_the_promised_sizes() -> None:
    for name, per_kind in (("demo5", 2), ("demo5_eval", 20), ("demo5_warmup", 1)):
        kinds = [line["kind"] for line in prompt_lines(name)]
        assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(KINDS, per_kind)


def test_unseen_passes_over_a_question_that_training_asks() -> None:
    first = generated("code", "evaluation", 0)
    second = generated("code", "evaluation", 1)
    assert list(islice(unseen("code", "evaluation", {first.user}), 1)) == [second]


def test_a_machine_without_descriptions_is_told_the_command(tmp_path: Path) -> None:
    with pytest.raises(packages.PackagesMissingError, match=r"apt-get update -o Acquire"):
        packages.documents(tmp_path)


def test_a_description_with_a_list_is_passed_over() -> None:
    prose = "\n ".join(["It reads files and writes a report about what it found in them."] * 8)
    plain = f"Package: a\nDescription-en: reader of files\n {prose}\n"
    assert packages.parse(plain) is not None
    assert packages.parse(f"Package: a\nDescription-en: reader\n {prose}\n  * item\n") is None


def test_every_kind_has_a_generator() -> None:
    assert tuple(GENERATORS) == KINDS


def test_the_right_number_agrees_whatever_the_words() -> None:
    assert agrees("arithmetic", "It is easy.\nAnswer: 12", "We count.\nAnswer: 12")
    assert not agrees("arithmetic", "Answer: 12", "Answer: 13")
    assert not agrees("arithmetic", "Twelve", "Answer: 12")
    assert agrees("prose", "a", "b") is None
