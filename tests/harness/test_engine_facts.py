"""What an engine says of itself when it is ready, and what its log means, from recorded pages."""

import json
from pathlib import Path

import pytest

from harness.adapters import ADAPTERS
from harness.adapters.advice import KNOWN, explained

RECORDED = Path(__file__).parent / "recorded"
LLAMACPP, VLLM = ADAPTERS["llamacpp"], ADAPTERS["vllm"]


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


# --- facts ----------------------------------------------------------------------------------------


def llamacpp_facts(*, slots: str, log: str, build: str = "b0-unknown"):
    props = json.loads(recorded("llamacpp/props.json")) | {"build_info": build}
    models = '{"data": [{"id": "demo-dense"}]}'
    pages = {"/props": json.dumps(props), "/slots": slots, "/v1/models": models}
    return LLAMACPP.read_facts(pages, log)


def test_llama_server_names_its_drafter_and_depth_in_the_log_and_drafting_in_its_slots():
    facts = llamacpp_facts(
        slots=recorded("llamacpp/slots_draft_dflash.json"),
        log=recorded("llamacpp/start_draft_dflash.log"),
        build="b11434-abc",
    )
    assert facts == {
        "id": "demo-dense",
        "version": "b11434-abc",
        "max_concurrent_requests": 1,
        "parallel": 1,
        "context_per_slot": 2048,
        "kv_tokens": 2048,
        "full_length_requests": 1.0,
        "speculation": "on",
        "drafter": "draft-dflash",
        "block": 8,
        "k": 7,
    }


def test_a_build_without_a_number_has_no_version():
    assert "version" not in llamacpp_facts(slots="[]", log="")


def test_a_refused_drafter_is_a_server_that_does_not_draft():
    """llama-server goes on, ready and plain, when the two vocabularies differ."""
    facts = llamacpp_facts(
        slots='[{"id": 0, "n_ctx": 512, "speculative": false}]',
        log=recorded("llamacpp/refused_drafter.log"),
    )
    assert facts["speculation"] == "off"
    assert "drafter" not in facts


@pytest.mark.parametrize(("unified", "kv_tokens"), [("true", 4096), ("false", 16384)])
def test_slots_share_a_cache_only_where_it_is_unified(unified, kv_tokens):
    line = f"initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = '{unified}'"
    slots = json.dumps([{"id": i, "n_ctx": 4096, "speculative": True} for i in range(4)])
    facts = llamacpp_facts(slots=slots, log=line)
    assert facts["kv_tokens"] == kv_tokens
    assert facts["full_length_requests"] == kv_tokens / 4096


def vllm_facts(log: str):
    models = '{"data": [{"id": "demo-dense", "max_model_len": 2048}]}'
    return VLLM.read_facts(
        {
            "/version": '{"version": "0.32.0"}',
            "/v1/models": models,
            "/metrics": recorded("vllm_0.32_metrics.txt"),
        },
        log,
    )


def test_vllm_names_its_drafter_depth_and_runner_in_the_log_and_its_cache_in_the_metrics():
    assert vllm_facts(recorded("vllm/start_ngram.log")) == {
        "id": "demo-dense",
        "max_model_len": 2048,
        "version": "0.32.0",
        "kv_tokens": 46592,
        "full_length_requests": 22.75,
        "prefix_caching": "True",
        "drafter": "ngram",
        "k": 5,
        "runner": "V1",
        "gpu_memory_utilization": 0.92,
        "max_num_scheduled_tokens": 2048,
        "dtype": "float32",
        "kv_cache_dtype": "auto",
        "enforce_eager": "True",
        "tensor_parallel_size": "1",
    }


def test_vllm_without_a_drafter_says_so():
    facts = vllm_facts("Initializing a V1 LLM engine with config: speculative_config=None, tok")
    assert facts["drafter"] == "none"
    assert "k" not in facts


def test_mtp_of_any_kind_proves_nothing_about_the_word_it_was_asked_for_by():
    facts = vllm_facts("speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=3)")
    assert facts["k"] == 3
    assert "drafter" not in facts


def test_vllm_says_when_it_takes_its_second_runner():
    assert vllm_facts("INFO [gpu_worker.py:518] Using V2 Model Runner")["runner"] == "V2"


def test_vllm_tells_what_its_weights_take_on_a_gpu():
    facts = vllm_facts("INFO [gpu_model_runner.py:4813] Model loading took 2.5 GiB memory")
    assert facts["weights_memory_bytes"] == 2_684_354_560  # 2.5 x 1024^3


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_engine_without_its_pages_tells_nothing(name):
    """No page, no log, or pages of another shape: no fact, and no error."""
    adapter = ADAPTERS[name]
    assert not adapter.read_facts({}, "")
    assert not adapter.read_facts(dict.fromkeys(adapter.fact_paths, "[1]"), "")


# --- logs -----------------------------------------------------------------------------------------


def advice(log: str) -> str:
    return "\n".join(each.advice for each in explained(log))


@pytest.mark.parametrize(
    ("name", "advised"),
    [
        ("llamacpp/model_failed.log", "the model is not there or no GGUF file"),
        ("llamacpp/memory_failed.log", "memory ran out"),
        ("llamacpp/drafter_failed.log", "is none of DFlash"),
        ("llamacpp/refused_drafter.log", "goes on without the drafter"),
        ("vllm/start_ngram.log", "V1, on which a DFlash 2 checkpoint drafts as DFlash 1"),
        ("vllm/start_ngram.log", "speculation lowers the tokens of one step"),
    ],
)
def test_a_recorded_log_is_explained(name, advised):
    assert advised in advice(recorded(name))


@pytest.mark.parametrize(
    ("line", "advised"),
    [
        (
            "ValueError: DFlash2 requires an unquantized target LM head for candidate TopK.",
            "no lm_head.weight_scale",
        ),
        (
            "ValueError: There is no module or parameter named 'candidate_selector' in DFlash",
            "reads the drafter as DFlash 1",
        ),
        (
            "KeyError: no module candidate_selector in DFlashQwen3ForCausalLM",
            "reads the drafter as DFlash 1",
        ),
        (
            "NotImplementedError: DFlash drafters with mixed sliding/full attention require the V2 "
            "model runner; relaunch with VLLM_USE_V2_MODEL_RUNNER=1.",
            "VLLM_USE_V2_MODEL_RUNNER",
        ),
        (
            "config: model='t', speculative_config=SpeculativeConfig(method='dflash', model='d', "
            "num_spec_tokens=7), tokenizer='t', dtype=torch.float16, max_seq_len=2048",
            "write `dtype: bfloat16`",
        ),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "NaN"),
        ("CheckpointError: the drafter's scores are not finite; compute in float32", "NaN"),
        (
            "ValueError: max_num_scheduled_tokens is set to -8 based on the speculative decoding "
            "settings, which does not allow any tokens to be scheduled.",
            "or lower `k`",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (8.0 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (2.0 GiB).",
            "the KV cache does not fit",
        ),
        (
            'docker: could not select device driver "" with capabilities: [[gpu]].',
            "nvidia-container-toolkit",
        ),
        (
            "n_max=12, n_min=0) exceeds the trained block size 8 -- clamping to 7",
            "the block size less one",
        ),
        ("error: invalid argument: --foo", "no option of this engine"),
        (
            'error while handling argument "--spec-type": unknown speculative type: draft-foo',
            "no word of this build",
        ),
        ("ValueError: No available memory for the cache blocks. Try", "VLLM_CPU_KVCACHE_SPACE"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "nothing else may hold the device"),
    ],
)
def test_a_known_line_is_explained(line, advised):
    (found,) = explained(f"before\n  {line}\nafter")
    assert found.line == line
    assert advised in found.advice


def test_another_drafter_in_float16_is_not_explained():
    line = "speculative_config=SpeculativeConfig(method='ngram', model=None), dtype=torch.float16"
    assert explained(line) == ()


def test_a_start_that_is_as_it_should_be_is_not_explained():
    assert explained(recorded("llamacpp/start_draft_dflash.log")) == ()


def test_every_signature_says_where_it_was_seen():
    assert all(signature.seen_in and signature.advice for signature in KNOWN)
