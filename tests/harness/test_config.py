"""The YAML door: what a matrix becomes, how each mistake is told. Places are counted by hand."""

import shutil
from pathlib import Path

import pytest

from harness.config import load_matrix, matrix_page, matrix_schema
from harness.errors import ConfigError
from harness.plan import make_plan
from harness.records import Drafter, Model, Sampling, Schedule, Timeouts

PROJECT = Path(__file__).parents[2]

GOOD = """\
name: demo
engines:
  bundled: {use: configs/engines/bundled.yaml}
variants:
  - {name: plain, engine: bundled, target: demo}
  - name: DFlash2
    engine: bundled
    target: demo
    drafter: {method: dflash2, model: demo-dflash2, k: 7}
    flags: {threads: 2}
held_constant: {kv_len: 2048, share: 0.80, prefix: true, limits: {image: 0}}
sampling: {temperature: 0}
workloads:
  - kind: generate
    prompts: demo5
    warmup: demo5_warmup
    repetitions: 3
    max_tokens: 384
  - kind: concurrency
    prompts: demo5
    levels: [1, 2, 4]
    load: closed
    max_tokens: 192
schedule: {order: abba, boots: 4, cooldown_s: 2.5}
goals: {decode_rate: 43}
"""


def prompt_line(prompt_id: str, text: str) -> str:
    return (
        f'{{"id": "{prompt_id}", "kind": "code", "source": "ours", "licence": "Apache-2.0", '
        f'"messages": [{{"role": "user", "content": "{text}"}}]}}\n'
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one engine, two models and three prompt sets, and we stand in it."""
    files = {
        "pyproject.toml": "",
        "configs/engines/bundled.yaml": 'adapter: dflash2\ncommand: ["{python}", "-m", "serve"]\n',
        "configs/models/demo.yaml": "path: demo/target\n",
        "configs/models/demo-dflash2.yaml": "path: demo/drafter\n",
        "demo/target/config.json": "{}",
        "demo/drafter/config.json": "{}",
        "prompts/demo5.jsonl": prompt_line("p1", "one") + prompt_line("p2", "two"),
        "prompts/demo5_warmup.jsonl": prompt_line("w1", "three"),
        "prompts/study4.jsonl": prompt_line("s1", "four"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(project: Path, text: str) -> Path:
    path = project / "configs" / "matrices" / "m.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def mistake(project: Path, text: str) -> str:
    """What loading `text` says, without the file's path in front."""
    with pytest.raises(ConfigError) as caught:
        load_matrix(written(project, text))
    return str(caught.value).replace("configs/matrices/m.yaml:", "")


def changed(before: str, after: str) -> str:
    assert GOOD.count(before) == 1, before
    return GOOD.replace(before, after)


# --- what a matrix becomes ------------------------------------------------------------------------


def test_a_good_matrix_is_read_whole(project: Path) -> None:
    matrix = load_matrix(written(project, GOOD))
    assert matrix.name == "demo"
    assert matrix.path == "configs/matrices/m.yaml"
    assert matrix.purpose == "measurement"
    assert matrix.sampling == Sampling(temperature=0.0)
    assert matrix.schedule == Schedule(order="abba", boots=4, cooldown_s=2.5)
    assert matrix.goals == {"decode_rate": 43.0}
    assert matrix.held_constant == {
        "kv_len": 2048,
        "share": "0.80",
        "prefix": True,
        "limits": {"image": 0},
    }


def test_a_models_file_says_which_checkpoint_was_published(project: Path) -> None:
    described = project / "configs/models/demo-dflash2.yaml"
    described.write_text("path: demo/drafter\npublished: somebody/drafter\n")
    _, drafted = load_matrix(written(project, GOOD)).variants

    assert drafted.drafter is not None
    assert drafted.drafter.model == Model(
        name="demo-dflash2", path="demo/drafter", published="somebody/drafter"
    )


@pytest.mark.parametrize("fact", ["memory_bandwidth_GBps", "memory_GB"])
@pytest.mark.parametrize("number", ['"273"', "0", "-1", "true", "fast"])
def test_a_fact_of_the_memory_that_is_no_number_above_0_is_refused(
    project: Path, fact: str, number: str
) -> None:
    text = f"{GOOD}device: {{{fact}: {number}}}\n"

    assert f"{fact} must be a number above 0" in mistake(project, text)


def test_facts_of_the_device_are_kept_as_they_are_written(project: Path) -> None:
    text = f"{GOOD}device: {{memory_bandwidth_GBps: 273, name: Spark}}\n"

    assert load_matrix(written(project, text)).device == {
        "memory_bandwidth_GBps": 273,
        "name": "Spark",
    }


def test_variants_carry_engine_models_and_flags(project: Path) -> None:
    plain, dflash2 = load_matrix(written(project, GOOD)).variants
    assert plain.engine.name == "bundled"
    assert plain.engine.adapter == "dflash2"
    assert plain.engine.command == ("{python}", "-m", "serve")
    assert plain.target == Model(name="demo", path="demo/target")
    assert plain.drafter is None
    drafter_model = Model(name="demo-dflash2", path="demo/drafter")
    assert dflash2.drafter == Drafter(method="dflash2", model=drafter_model, k=7)
    assert dflash2.flags == {"threads": 2}


def test_workloads_carry_their_prompts_and_defaults(project: Path) -> None:
    generate, closed = load_matrix(written(project, GOOD)).workloads
    assert generate.load == "single"
    assert generate.levels == (1,)
    assert [prompt.prompt_id for prompt in generate.prompts.prompts] == ["p1", "p2"]
    assert generate.warmup is not None
    assert generate.warmup.name == "demo5_warmup"
    assert closed.levels == (1, 2, 4)
    assert closed.load == "closed"
    assert closed.assignment == "balanced"
    assert closed.repetitions == 3
    assert closed.num_requests is None
    assert closed.warmup is None


def test_keys_beside_use_go_before_those_of_the_used_file(project: Path) -> None:
    text = changed("bundled.yaml}", "bundled.yaml, ready_timeout_s: 9, environment: {A: 1.10}}")
    engine = load_matrix(written(project, text)).variants[0].engine
    assert engine.ready_timeout_s == 9.0
    assert engine.environment == {"A": "1.10"}
    assert engine.adapter == "dflash2"


def test_a_path_that_is_not_in_the_project_counts_from_the_file(project: Path) -> None:
    path = written(project, changed("configs/engines/bundled.yaml", "near.yaml"))
    (path.parent / "near.yaml").write_text("adapter: openai\nkind: attach\nurl: http://h:1/v1\n")
    engine = load_matrix(path).variants[0].engine
    assert engine.kind == "attach"
    assert engine.url == "http://h:1/v1"


def test_a_model_may_be_a_folder_or_a_hub_name(project: Path) -> None:
    text = changed("engine: bundled, target: demo}", "engine: bundled, target: demo/target}")
    text = text.replace("model: demo-dflash2", "model: z-lab/Qwen3.8-27B-DFlash2")
    plain, dflash2 = load_matrix(written(project, text)).variants
    assert plain.target == Model(name="demo/target", path="demo/target")
    assert dflash2.drafter is not None
    hub = "z-lab/Qwen3.8-27B-DFlash2"
    # a folder of the same shape would go before; there is none
    assert dflash2.drafter.model == Model(name=hub, path=hub)


def test_merge_keys_are_no_duplicates(project: Path) -> None:
    text = changed(
        "  - {name: plain, engine: bundled, target: demo}\n",
        "  - &plain {name: plain, engine: bundled, target: demo}\n"
        "  - {<<: *plain, name: again, flags: {threads: 1}}\n",
    )
    again = load_matrix(written(project, text)).variants[1]
    assert again.name == "again"
    assert again.target.name == "demo"


@pytest.mark.parametrize(
    ("number", "expected"),
    [("0.6", 0.6), ("1e-3", 0.001), ("1.0e0", 1.0), ("5e-2", 0.05), (".5", 0.5), ("1", 1.0)],
)
def test_numbers_are_numbers_however_yaml_reads_them(
    project: Path, number: str, expected: float
) -> None:
    text = changed("temperature: 0}", f"temperature: {number}}}")
    assert load_matrix(written(project, text)).sampling.temperature == expected


@pytest.mark.parametrize("number", ["1e3", "1000", "1_000", "1000.0"])
def test_a_whole_number_may_be_written_as_people_do(project: Path, number: str) -> None:
    text = changed("max_tokens: 384", f"max_tokens: {number}")
    assert load_matrix(written(project, text)).workloads[0].max_tokens == 1000


def test_text_that_looks_like_a_number_or_a_date_keeps_its_letters(project: Path) -> None:
    for name in ("12345678", "695e0514", "1.10", "2026-11-29", "0123"):
        text = changed("{name: plain,", f"{{name: {name},")
        assert load_matrix(written(project, text)).variants[0].name == name


def test_flags_keep_hashes_and_quoted_numbers_as_text(project: Path) -> None:
    flags = 'a: 695e0514, b: "1.10", c: 2026-11-29, d: 0123, e: "on", f: 7, g: 1e-3'
    text = changed("flags: {threads: 2}", f"flags: {{{flags}}}")
    assert load_matrix(written(project, text)).variants[1].flags == {
        "a": "695e0514",
        "b": "1.10",
        "c": "2026-11-29",
        "d": "0123",
        "e": "on",
        "f": 7,
        "g": "1e-3",
    }


# --- mistakes in YAML -----------------------------------------------------------------------------


def test_a_missing_file_is_named(project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_matrix(project / "nothing.yaml")
    assert str(caught.value) == "no file nothing.yaml; write the path of a matrix file"


@pytest.mark.parametrize("word", ["on", "Off", "YES", "no"])
def test_a_boolean_in_disguise_is_refused(project: Path, word: str) -> None:
    assert mistake(project, changed("threads: 2", f"spec: {word}")) == (
        f'10:19: `{word}` is a boolean to YAML; write "{word}" for the word, true/false for a '
        "switch"
    )


def test_a_key_that_yaml_makes_a_boolean_is_refused(project: Path) -> None:
    assert mistake(project, GOOD + "on: {concurrency: [1]}\n").startswith("26:1: `on` is a boolean")
    assert mistake(project, GOOD + "true: 1\n") == (
        "26:1: `true` is no key; quote it if you mean the word"
    )


def test_a_key_written_twice_is_refused_with_both_lines(project: Path) -> None:
    assert mistake(project, GOOD + "name: again\n") == (
        "26:1: `name` stands here and in line 1; keep one"
    )


def test_a_key_without_a_value_is_refused(project: Path) -> None:
    said = "nothing stands here; write a value or leave the key out"
    assert mistake(project, changed("threads: 2", "model: null")) == f"10:20: {said}"
    assert mistake(project, changed("name: demo\n", "name:\n")) == f"1:6: {said}"


def test_what_is_no_yaml_is_told_with_its_place(project: Path) -> None:
    assert mistake(project, "name: [1, 2\nengines: {}\n").startswith("2:8: this is no YAML: ")
    assert mistake(project, "- a\n") == (
        "configs/matrices/m.yaml must hold keys and values (`name: ...`) and does not"
    )


def test_a_file_that_is_not_utf8_is_refused(project: Path) -> None:
    path = written(project, "")
    path.write_bytes("name: Käse\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"m\.yaml cannot be read as UTF-8 text"):
        load_matrix(path)


def test_a_tag_is_refused(project: Path) -> None:
    assert mistake(project, changed("name: demo\n", "name: !!python/none x\n")) == (
        "1:7: the tag `tag:yaml.org,2002:python/none` means nothing here; remove it"
    )


def test_an_alias_to_where_it_stands_is_refused(project: Path) -> None:
    assert mistake(project, changed("flags: {threads: 2}", "flags: &a {b: *a}")) == (
        "10:12: this alias stands inside what it repeats; write it out"
    )


def test_a_used_file_that_is_missing_is_named(project: Path) -> None:
    assert mistake(project, changed("engines/bundled.yaml", "engines/bundle.yaml")) == (
        "3:18: `use: configs/engines/bundle.yaml`: there is no file configs/engines/bundle.yaml"
    )


def test_a_used_file_may_not_use_another(project: Path) -> None:
    used = project / "configs" / "engines" / "bundled.yaml"
    used.write_text("use: other.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load_matrix(written(project, GOOD))
    assert str(caught.value) == (
        "configs/engines/bundled.yaml:1:6: `use: other.yaml` stands in a file that is itself used; "
        "write its keys out"
    )


def test_a_mistake_in_a_used_file_is_told_at_its_place_there(project: Path) -> None:
    used = project / "configs" / "engines" / "bundled.yaml"
    used.write_text('adapter: dflash2\ncommand: ["x"]\nready_timeout_s: soon\n')
    with pytest.raises(ConfigError) as caught:
        load_matrix(written(project, GOOD))
    assert str(caught.value) == (
        "configs/engines/bundled.yaml:3:18: `ready_timeout_s: soon` must be a number, without "
        "quotes"
    )


# --- mistakes in single keys ----------------------------------------------------------------------


def test_an_unknown_key_is_told_with_the_nearest_one(project: Path) -> None:
    assert mistake(project, changed("    repetitions: 3", "    repetitons: 3")) == (
        "17:5: unknown key `repetitons`; did you mean `repetitions`?; known here: prompts, warmup, "
        "warmup_passes, repetitions, max_tokens, length, timeouts, cache, retries, kind"
    )


def test_a_key_of_before_is_told_by_its_new_name(project: Path) -> None:
    text = changed("bundled.yaml}", "bundled.yaml, boot_timeout_s: 9}")
    assert mistake(project, text) == (
        "3:48: `boot_timeout_s` is called `ready_timeout_s` now; rename it"
    )


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("temperature: 0}", "temperature: -1}", "12:25: `temperature: -1` must be at least 0"),
        ("temperature: 0}", "temperature: warm}", "12:25: `temperature: warm` must be a number"),
        ("temperature: 0}", 'temperature: "0"}', "12:25: `temperature: 0` must be a number"),
        ("temperature: 0}", "temperature: .inf}", "12:25: `temperature: .inf` must be a number"),
        ("temperature: 0}", "top_p: 1.5}", "12:19: `top_p: 1.5` must be at most 1"),
        ("repetitions: 3", "repetitions: -3", "17:18: `repetitions: -3` must be at least 1"),
        ("repetitions: 3", "repetitions: 2.5", "17:18: `repetitions: 2.5` must be a whole number"),
        ("repetitions: 3", "repetitions: true", "17:18: `repetitions: true` must be a whole"),
        ("k: 7}", "k: 0}", "9:56: `k: 0` must be at least 1"),
        ("levels: [1, 2, 4]", "levels: [0, 2]", "21:14: `levels: 0` must be at least 1"),
        ("levels: [1, 2, 4]", "levels: []", "21:13: `levels` must not be empty"),
        ("levels: [1, 2, 4]", "levels: 4", "21:13: `levels: 4` must be a list (`[a, b]`)"),
        ("flags: {threads: 2}", "flags: fast", "10:12: `flags: fast` must hold keys and values"),
        ("name: demo\n", "name: a/b\n", "1:7: `name: a/b` must be made of letters, digits"),
        ("name: demo\n", "name: true\n", "1:7: `name: true` must be text; quote it if you mean"),
        ("{name: plain,", '{name: "",', "5:12: `name: ` must not be empty"),
        ("cooldown_s: 2.5", "cooldown_s: -1", "24:47: `cooldown_s: -1` must be at least 0"),
        ("bundled.yaml}", "bundled.yaml, ready_timeout_s: 0}", "must be more than 0"),
        ("decode_rate: 43", "decode_rate: 0", "25:22: `decode_rate: 0` must be more than 0"),
        ("decode_rate: 43", "decode_rate: -1", "25:22: `decode_rate: -1` must be more than 0"),
    ],
)
def test_a_value_that_cannot_be_is_quoted_with_what_it_must_be(
    project: Path, before: str, after: str, said: str
) -> None:
    assert said in mistake(project, changed(before, after))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "load: closed",
            "load: closd",
            "22:11: `load: closd` is not one of wave, closed, constant, poisson; did you mean "
            "`closed`?",
        ),
        (
            "kind: concurrency",
            "kind: concurency",
            "19:11: `kind: concurency` is not one of generate, edit, prefill, "
            "concurrency; "
            "did you mean `concurrency`?",
        ),
        (
            "bundled.yaml}",
            "bundled.yaml, kind: contain}",
            "3:54: `kind: contain` is not one of process, container, attach; did you mean "
            "`container`?",
        ),
    ],
)
def test_a_word_that_is_not_known_is_told_with_those_that_are(
    project: Path, before: str, after: str, said: str
) -> None:
    assert mistake(project, changed(before, after)) == said


def test_a_missing_key_is_told_where_its_section_begins(project: Path) -> None:
    assert mistake(project, changed("    max_tokens: 384\n", "")) == (
        "14:5: `max_tokens` is missing here"
    )
    assert mistake(project, changed("kind: generate\n    ", "")) == (
        "14:5: `kind` is missing here: one of generate, edit, prefill, concurrency"
    )


def test_a_goal_for_a_figure_that_there_is_not_is_refused_when_the_file_is_read(
    project: Path,
) -> None:
    assert mistake(project, changed("decode_rate: 43", "decoding_rate: 43")) == (
        "25:9: no figure is called `decoding_rate`; did you mean `decode_rate`?; docs/figures.md "
        "has all"
    )


def test_edits_and_prefill_are_workloads_of_one_stream(project: Path) -> None:
    edits = load_matrix(written(project, changed("kind: generate", "kind: edit")))
    lengths = load_matrix(
        written(project, changed("kind: generate", "kind: prefill").replace("384", "1"))
    )

    assert (edits.workloads[0].kind, edits.workloads[0].load) == ("edit", "single")
    assert (lengths.workloads[0].kind, lengths.workloads[0].max_tokens) == ("prefill", 1)


def test_a_prefill_of_more_than_one_token_is_refused(project: Path) -> None:
    assert "must be at most 1" in mistake(project, changed("kind: generate", "kind: prefill"))


def test_a_sweep_of_depths_is_a_variant_for_each(project: Path) -> None:
    matrix = load_matrix(written(project, changed("k: 7", "depths: [3, 7]")))

    assert [
        (variant.name, variant.drafter.k) for variant in matrix.variants[1:] if variant.drafter
    ] == [
        ("DFlash2 k=3", 3),
        ("DFlash2 k=7", 7),
    ]


def test_one_depth_and_several_are_one_too_many(project: Path) -> None:
    assert "`k` and `depths`" in mistake(project, changed("k: 7", "k: 7, depths: [3, 7]"))
    assert mistake(project, changed("name: demo\n", "")) == "1:1: `name` is missing here"


def test_a_section_that_is_a_word_is_refused(project: Path) -> None:
    assert mistake(project, changed("sampling: {temperature: 0}", "sampling: greedy")) == (
        "12:11: `sampling: greedy` must hold keys and values (`key: value`)"
    )


def test_all_mistakes_in_keys_are_told_together_in_order(project: Path) -> None:
    text = changed("repetitions: 3", "repetitions: 0").replace("boots: 4", "boots: 0")
    with pytest.raises(ConfigError) as caught:
        load_matrix(written(project, text))
    assert str(caught.value) == (
        "configs/matrices/m.yaml:17:18: `repetitions: 0` must be at least 1\n"
        "configs/matrices/m.yaml:24:32: `boots: 0` must be at least 1"
    )
    assert caught.value.place is not None
    assert caught.value.place.line == 17


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("bundled.yaml}", "bundled.yaml, api_key: swordfish}", "3:48: `api_key` holds"),
        (
            "bundled.yaml}",
            "bundled.yaml, environment: {HF_TOKEN: swordfish}}",
            "`HF_TOKEN` holds",
        ),
        ("flags: {threads: 2}", "flags: {api-key: swordfish}", "10:13: `api-key` holds"),
        ("flags: {threads: 2}", "flags: {x: sk-swordfish123}", "`flags` looks like"),
        (
            "bundled.yaml}",
            "bundled.yaml, command: [serve, --api-key, swordfish]}",
            "3:65: `command` hands over",
        ),
        (
            "bundled.yaml}",
            "bundled.yaml, command: [serve, --api-key=swordfish]}",
            "3:65: `command` hands over",
        ),
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(
    project: Path, before: str, after: str, place: str
) -> None:
    said = mistake(project, changed(before, after))
    assert place in said
    assert "name that of an API key in the engine's `api_key_env`" in said
    assert "swordfish" not in said


def test_a_password_in_a_url_is_refused(project: Path) -> None:
    engine = "{adapter: openai, kind: attach, url: 'https://me:swordfish@host/v1'}"
    said = mistake(project, changed("{use: configs/engines/bundled.yaml}", engine))
    assert said.startswith("3:49: `url` looks like a secret")
    assert "swordfish" not in said


def test_words_that_only_sound_like_secrets_are_not(project: Path) -> None:
    text = changed("flags: {threads: 2}", "flags: {eos_token: x, max_tokens: 5, tokenizer: sk-2}")
    assert set(load_matrix(written(project, text)).variants[1].flags) == {
        "eos_token",
        "max_tokens",
        "tokenizer",
    }


def test_the_name_of_a_variable_is_no_secret(project: Path) -> None:
    text = changed("bundled.yaml}", "bundled.yaml, api_key_env: MY_KEY}")
    assert load_matrix(written(project, text)).variants[0].engine.api_key_env == "MY_KEY"


# --- mistakes in what keys say together -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "{name: plain, engine: bundled,",
            "{name: plain, engine: bundeld,",
            "5:27: unknown engine `bundeld`; did you mean `bundled`?; `engines:` has: bundled",
        ),
        (
            "bundled.yaml}",
            "bundled.yaml, adapter: dflsh2}",
            "3:57: unknown adapter `dflsh2`; did you mean `dflash2`?; there are: ",
        ),
        (
            "{name: plain, engine: bundled, target: demo}",
            "{name: plain, engine: bundled, target: demp}",
            "5:44: unknown model `demp`; did you mean `demo`?; configs/models has: "
            "demo, demo-dflash2",
        ),
        (
            "model: demo-dflash2",
            "model: demo_dflash2",
            "9:39: unknown model `demo_dflash2`; did you mean `demo-dflash2`?; configs/models has: "
            "demo, demo-dflash2",
        ),
        (
            "warmup: demo5_warmup",
            "warmup: demo5_warmpu",
            "16:13: unknown prompt set `demo5_warmpu`; did you mean `demo5_warmup`?; prompts has: "
            "demo5, demo5_warmup, study4",
        ),
        (
            "warmup: demo5_warmup",
            "warmup: demo5",
            "16:13: `warmup: demo5` holds the measured prompt `p1`, which would then run warm; "
            "take others",
        ),
        (
            "levels: [1, 2, 4]",
            "levels: [1, 2, 1]",
            "21:20: level 1 stands after 2; write each once, rising",
        ),
        (
            "levels: [1, 2, 4]",
            "levels: [1, 2, 2.0]",
            "21:20: level 2 stands after 2; write each once, rising",
        ),
        (
            "boots: 4",
            "boots: 3",
            "24:32: `boots: 3` with `order: abba` leaves the machine's drift on one side; write 4, "
            "or `order: listed`",
        ),
        (
            "name: DFlash2",
            "name: plain",
            "6:11: `name: plain` names two variants; rename one",
        ),
        (
            "name: DFlash2",
            "name: Plain!",
            "6:11: `name: Plain!` and `plain` would both have cells named plain-...; "
            "let them differ by a letter or digit",
        ),
        (
            "name: DFlash2",
            'name: "Ω"',
            "6:11: `name: Ω` needs a letter or digit of ASCII, for its cells' ids",
        ),
        (
            "flags: {threads: 2}",
            "reference: plane",
            "10:16: unknown reference `plane`; did you mean `plain`?; variants are: plain, DFlash2",
        ),
        (
            "flags: {threads: 2}",
            "reference: DFlash2",
            "10:16: `reference: DFlash2` is the variant itself; leave the key out",
        ),
        (
            "bundled.yaml}",
            "bundled.yaml, url: http://h}",
            "3:53: `url` means nothing for an engine of kind process; remove it",
        ),
        (
            "{use: configs/engines/bundled.yaml}",
            "{adapter: dflash2, kind: attach}",
            "3:12: engine `bundled` of kind attach needs `url`",
        ),
        (
            "load: closed",
            "num_requests: 8",
            "22:19: `num_requests` means nothing for waves, each has c requests; remove it",
        ),
    ],
)
def test_keys_that_do_not_fit_together_are_told_with_what_to_do(
    project: Path, before: str, after: str, said: str
) -> None:
    assert mistake(project, changed(before, after)).startswith(said)


ARRIVALS = "load: poisson\n    rate_per_s: 2\n    num_requests: 20\n    seed: 7\n"


def test_arrivals_timeouts_and_the_client_are_read(project: Path) -> None:
    text = changed("load: closed\n", f"{ARRIVALS}    retries: 2\n    timeouts: {{idle_s: 5}}\n")
    text = text.replace("bundled.yaml}", "bundled.yaml, timeouts: {first_event_s: 30}}")
    matrix = load_matrix(written(project, text + "client: {transport: httpx}\n"))
    generate, poisson = matrix.workloads
    assert (poisson.load, poisson.rate_per_s, poisson.num_requests) == ("poisson", 2.0, 20)
    assert (poisson.seed, poisson.retries) == (7, 2)
    assert poisson.timeouts == Timeouts(idle_s=5.0)
    assert generate.timeouts is None
    assert matrix.variants[0].engine.timeouts == Timeouts(first_event_s=30.0)
    assert matrix.transport == "httpx"


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            "load: poisson\n    num_requests: 9\n",
            "19:5: `load: poisson` needs `rate_per_s`, for example `rate_per_s: 2`",
        ),
        (
            "load: constant\n    rate_per_s: 2\n",
            "19:5: `load: constant` needs `num_requests`, for example `num_requests: 100`",
        ),
        (
            "load: closed\n    rate_per_s: 2\n",
            "23:17: `rate_per_s` means nothing for `load: closed`; remove it, or write",
        ),
        ("load: poisson\n    rate_per_s: 0\n", "`rate_per_s: 0` must be more than 0"),
    ],
)
def test_a_rate_belongs_to_arrivals(project: Path, load: str, said: str) -> None:
    assert said in mistake(project, changed("load: closed\n", load))


ATTACHED = "{adapter: openai, kind: attach, url: http://h, max_rate_per_s: 2}"


@pytest.mark.parametrize(
    ("load", "distorted"),
    [
        ("load: closed\n", True),
        ("load: wave\n", True),
        (ARRIVALS, True),
        ("load: constant\n    rate_per_s: 2.5\n    num_requests: 9\n", True),
        ("load: constant\n    rate_per_s: 2\n    num_requests: 9\n", False),
    ],
)
def test_a_limit_that_would_distort_a_load_is_refused(
    project: Path, load: str, distorted: bool
) -> None:
    text = changed("{use: configs/engines/bundled.yaml}", ATTACHED)
    text = text.replace("load: closed\n", load)
    if distorted:
        assert "`max_rate_per_s: 2` of engine `bundled` would distort this load" in mistake(
            project, text
        )
    else:
        assert load_matrix(written(project, text)).variants[0].engine.max_rate_per_s == 2.0


def test_a_limit_for_an_engine_of_ours_is_refused(project: Path) -> None:
    text = changed("bundled.yaml}", "bundled.yaml, max_rate_per_s: 2}")
    assert "for servers that are not ours" in mistake(project, text)


def test_too_few_requests_for_the_highest_level_are_refused(project: Path) -> None:
    assert mistake(project, changed("load: closed\n", "load: closed\n    num_requests: 3\n")) == (
        "23:19: `num_requests: 3` cannot keep 4 in flight; write at least four times the highest "
        "level"
    )


def test_a_model_whose_folder_is_missing_is_told_in_its_own_file(project: Path) -> None:
    shutil.rmtree(project / "demo" / "drafter")
    (project / "configs/models/demo-dflash2.yaml").write_text("path: engines/demo/dense/drafter\n")
    with pytest.raises(ConfigError) as caught:
        load_matrix(written(project, GOOD))
    assert str(caught.value) == (
        "configs/models/demo-dflash2.yaml:1:7: `path: engines/demo/dense/drafter`: "
        "there is no folder engines/demo/dense/drafter"
    )


def test_a_depth_beyond_the_block_is_left_to_the_engine(project: Path) -> None:
    matrix = load_matrix(written(project, changed("k: 7}", "k: 15}")))
    assert matrix.variants[1].drafter is not None
    assert matrix.variants[1].drafter.k == 15


# --- what is shipped ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["quickstart", "smoke"])
def test_a_shipped_matrix_can_be_planned(project: Path, name: str) -> None:
    shutil.copytree(PROJECT / "configs", project / "configs", dirs_exist_ok=True)
    for part in ("target", "drafter"):
        (project / "engines" / "demo" / "dense" / part).mkdir(parents=True)
    matrix = load_matrix(project / "configs" / "matrices" / f"{name}.yaml")
    plan = make_plan(matrix)
    assert [variant.name for variant in matrix.variants] == ["plain", "DFlash2"]
    assert all(c.reference_cell_id for c in plan.cells if c.variant == "DFlash2")


def test_the_page_on_the_matrix_file_is_up_to_date() -> None:
    page = (PROJECT / "docs" / "matrix.md").read_text(encoding="utf-8")
    assert page == matrix_page(), "run `python -m harness.config > docs/matrix.md`"


def test_the_schema_knows_every_section() -> None:
    schema = matrix_schema()
    assert schema["required"] == ["name", "engines", "variants", "workloads"]
    assert schema["additionalProperties"] is False
    assert "ConcurrencyEntry" in schema["$defs"]


# --- mistakes that would be measured without a word -----------------------------------------------


@pytest.mark.parametrize("nearly", ["memory_gb", "memry_GB", "memory_bandwith_GBps"])
def test_a_fact_of_the_device_that_is_nearly_one_of_ours_is_refused(
    project: Path, nearly: str
) -> None:
    meant = "memory_bandwidth_GBps" if "band" in nearly else "memory_GB"

    assert f"`{nearly}` is read by nothing; did you mean `{meant}`?" in mistake(
        project, f"{GOOD}device: {{{nearly}: 96}}\n"
    )


def test_warmup_passes_of_no_warmup_are_refused(project: Path) -> None:
    text = changed("    warmup: demo5_warmup\n", "    warmup_passes: 3\n")

    assert "`warmup_passes` needs `warmup`" in mistake(project, text)


def test_a_sweep_of_no_depth_would_lose_its_variant_and_is_refused(project: Path) -> None:
    assert "`depths` must not be empty" in mistake(project, changed("k: 7", "depths: []"))
