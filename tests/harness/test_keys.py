"""Golden hashes: the canonical texts below were written by hand and hashed with sha256sum.

printf '%s' '<text>' | sha256sum | cut -c1-12
"""

from dataclasses import replace

import pytest

from harness import keys
from harness.records import (
    Drafter,
    Engine,
    MachineFacts,
    Model,
    Prompt,
    PromptSet,
    Sampling,
    Timeouts,
    Variant,
    Workload,
)

PROMPT = Prompt(prompt_id="p1", kind="code", messages=(), source="", licence="")
WAVE = Workload(
    kind="concurrency",
    prompts=PromptSet(name="study4", prompts=(PROMPT,), sha256="abc"),
    warmup=None,
    repetitions=3,
    max_tokens=192,
    levels=(1, 2, 4),
    load="wave",
)
GREEDY = Sampling()
ENGINE = Engine(name="bundled", adapter="dflash2", kind="process", command=("python", "serve"))
DFLASH2 = Variant(
    name="DFlash2",
    engine=ENGINE,
    target=Model(name="demo", path="a/target"),
    drafter=Drafter(method="dflash2", model=Model(name="demo-dflash2", path="a/drafter"), k=7),
    flags={"threads": 2},
)
MACHINE = MachineFacts(
    hostname_hash="x",
    system="Linux",
    cpu="Xeon",
    num_cpus=2,
    memory_bytes=25_500_000_000,  # 23.7 GiB
    accelerators=("H200",),
    python="3.11",
    packages={},
)


def wave_key(workload: Workload = WAVE, sampling: Sampling = GREEDY) -> str:
    return keys.workload_key(workload, sampling, concurrency=4, num_requests=4)


def test_canonical_json_sorts_keys_and_keeps_floats_and_letters() -> None:
    value = {"ü": "x", "a": (1, 2.5, None, True)}
    assert keys.canonical_json(value) == '{"a":[1,2.5,null,true],"ü":"x"}'.encode()
    # 42d40a0efbdc22d4... {"a":[1,2.5,null,true],"ü":"x"}
    assert keys.short_hash(value) == "42d40a0efbdc"
    assert keys.short_hash(value, length=6) == "42d40a"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        keys.canonical_json({"rate": number})


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="must be text to be hashed, got 1"):
        keys.canonical_json({"levels": [{1: "x"}]})


def test_workload_key_is_the_golden_one() -> None:
    # a3287e61fc55... {"assignment":"balanced","concurrency":4,"kind":"concurrency",
    # "length":"natural","load":"wave","max_tokens":192,"num_requests":4,"prompts":"abc",
    # "sampling":{"seed":null,"temperature":0.0,"thinking":null,"top_k":null,"top_p":null}}
    # (in one line, without spaces)
    assert wave_key() == "a3287e61fc55"


def test_names_repetitions_and_warm_up_do_not_enter_the_workload_key() -> None:
    same = replace(
        WAVE,
        prompts=replace(WAVE.prompts, name="renamed"),
        warmup=replace(WAVE.prompts, sha256="other"),
        repetitions=9,
        levels=(4, 8),
    )
    assert wave_key(same) == wave_key()


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": replace(WAVE.prompts, sha256="abd")},
        {"load": "closed"},
        {"assignment": "rotate"},
        {"max_tokens": 193},
        {"length": "forced"},
    ],
)
def test_what_is_asked_of_the_engine_enters_the_workload_key(change: dict[str, object]) -> None:
    assert wave_key(replace(WAVE, **change)) != wave_key()


def test_sampling_enters_the_workload_key() -> None:
    assert wave_key(sampling=Sampling(temperature=0.6)) != wave_key()


def test_subject_key_is_the_golden_one() -> None:
    # 4fb1b4fc2027... {"drafter":{"k":7,"method":"dflash2","model":"demo-dflash2"},"engine":
    # {"adapter":"dflash2","name":"bundled"},"environment":{},"flags":{"kv_len":2048,"threads":2},
    # "target":"demo"}
    assert keys.subject_key(DFLASH2, {"kv_len": 2048}, {}) == "4fb1b4fc2027"
    # 89d10b86f1f9... the same with "drafter":null
    assert keys.subject_key(replace(DFLASH2, drafter=None), {"kv_len": 2048}, {}) == "89d10b86f1f9"


def test_a_renamed_variant_and_a_moved_program_are_the_same_subject() -> None:
    elsewhere = replace(ENGINE, command=("/opt/python", "serve"), ready_timeout_s=9.0)
    same = replace(DFLASH2, name="with speculation", engine=elsewhere, reference="plain")
    assert keys.subject_key(same, {}, {}) == keys.subject_key(DFLASH2, {}, {})


def test_a_flag_is_the_same_whether_held_constant_or_declared_by_the_variant() -> None:
    declared = replace(DFLASH2, flags={"threads": 2, "kv_len": 2048})
    assert keys.subject_key(declared, {}, {}) == keys.subject_key(DFLASH2, {"kv_len": 2048}, {})


def test_a_retrained_model_of_the_same_name_is_another_subject() -> None:
    before = keys.subject_key(DFLASH2, {}, {"demo": "aaaa"})
    assert keys.subject_key(DFLASH2, {}, {"demo": "bbbb"}) != before
    renamed = replace(DFLASH2, target=Model(name="my-demo", path="b"))
    assert keys.subject_key(renamed, {}, {"my-demo": "aaaa"}) == before


def test_environment_variables_are_declared_settings() -> None:
    threaded = replace(DFLASH2, engine=replace(ENGINE, environment={"OMP_NUM_THREADS": "1"}))
    assert keys.subject_key(threaded, {}, {}) != keys.subject_key(DFLASH2, {}, {})


def test_device_key_names_the_kind_of_machine_and_not_the_machine() -> None:
    # 716a16099073... {"accelerators":["H200"],"cpu":"Xeon","memory_GiB":24,"num_cpus":2}
    assert keys.device_key(MACHINE) == "716a16099073"
    twin = replace(MACHINE, hostname_hash="y", memory_bytes=25_600_000_000, python="3.12")
    assert keys.device_key(twin) == keys.device_key(MACHINE)
    assert keys.device_key(replace(MACHINE, num_cpus=4)) != keys.device_key(MACHINE)


def test_build_key_hashes_what_was_found_and_is_none_when_nothing_was() -> None:
    # 18a534bc9218... {"facts":{"block":8},"version":"0.1.0"}
    assert keys.build_key("0.1.0", {"block": 8}) == "18a534bc9218"
    assert keys.build_key(None, None) is None
    assert keys.build_key(None, {}) is None


def test_protocol_id_is_the_golden_one() -> None:
    # 47f0c5a186c6... {"assignment":"balanced","kind":"concurrency","length":"natural",
    # "load":"wave","num_requests":"c","sampling":{"seed":null,"temperature":0.0,
    # "thinking":null,"top_k":null,"top_p":null},"tool":"dflashbench","version":1}
    assert keys.protocol_id(WAVE, GREEDY) == "47f0c5a186c6"


def test_levels_prompts_and_token_limits_share_a_protocol() -> None:
    other = replace(WAVE, levels=(8,), prompts=replace(WAVE.prompts, sha256="x"), max_tokens=8)
    assert keys.protocol_id(other, GREEDY) == keys.protocol_id(WAVE, GREEDY)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "generate", "load": "single"},
        {"load": "closed"},
        {"load": "closed", "num_requests": 10},
        {"assignment": "round-robin"},
        {"length": "forced"},
        {"load": "constant", "rate_per_s": 2.0, "num_requests": 10},
        {"retries": 1},
    ],
)
def test_how_a_number_is_made_enters_the_protocol_id(change: dict[str, object]) -> None:
    ids = {keys.protocol_id(replace(WAVE, **change), GREEDY), keys.protocol_id(WAVE, GREEDY)}
    ids.add(keys.protocol_id(WAVE, Sampling(temperature=1.0)))
    assert len(ids) == 3


def test_another_transport_is_another_protocol() -> None:
    assert keys.protocol_id(WAVE, GREEDY, "asyncio") == keys.protocol_id(WAVE, GREEDY)
    assert keys.protocol_id(WAVE, GREEDY, "httpx") != keys.protocol_id(WAVE, GREEDY)


def test_how_long_the_client_waits_is_no_part_of_any_identity() -> None:
    patient = replace(WAVE, timeouts=Timeouts(first_event_s=9.0))
    assert wave_key(patient) == wave_key()
    assert keys.protocol_id(patient, GREEDY) == keys.protocol_id(WAVE, GREEDY)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("FP8 + DFlash2", "fp8-dflash2"), ("  a__b--c ", "a-b-c"), ("k=7", "k-7"), ("Ω", "")],
)
def test_slug_keeps_letters_and_digits(name: str, expected: str) -> None:
    assert keys.slug(name) == expected
