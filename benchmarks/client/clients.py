"""CLIENTS: what is measured side by side; how each is started and where it says what it found.

Peers run as their pages say, with their defaults, except that everything is local: a tokenizer
folder, no downloads, no proxy, no progress bars, 16 prompt tokens of their own random data.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client.loads import Load
from benchmarks.client.server import MODEL
from benchmarks.client.told import Told, percentile

HERE = Path(__file__).parent
EVERY_LOAD = frozenset({"c1", "c16", "c64", "c256", "unthrottled", "four_tokens"})
PROMPT_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where things of one run are. `peers`: what install_peers.sh made."""

    load_name: str
    url: str
    folder: Path
    peers: Path

    @property
    def tokenizer(self) -> str:
        return str(self.peers / "home/tokenizer")

    def python(self, environment: str) -> str:
        return str(self.peers / environment / "bin/python")

    def program(self, environment: str) -> str:
        return str(self.peers / environment / "bin" / environment)


@dataclass(frozen=True, kw_only=True)
class Client:
    """`num_rounds`: how often it is measured per load; slow ones take less of the session."""

    version: str
    command: Callable[[Load, Place], list[str]]
    read: Callable[[Path], Told]
    loads: frozenset[str] = EVERY_LOAD
    num_rounds: int = 5


# --- ours, the floor and the candidates -----------------------------------------------------------


def _ours(_: Load, place: Place, *more: str) -> list[str]:
    words = [place.load_name, place.url, str(place.folder), *more]
    return [sys.executable, "-m", "benchmarks.client.ours", *words]


def _candidate(name: str) -> Callable[[Load, Place], list[str]]:
    def command(load: Load, place: Place) -> list[str]:
        return [
            *(place.python("candidates"), str(HERE / "candidates.py"), name),
            *(place.url, str(place.folder)),
            *("--concurrency", str(load.concurrency)),
            *("--requests", str(load.num_requests)),
            *("--tokens", str(load.num_tokens)),
        ]

    return command


def _read_own(folder: Path) -> Told:
    return Told(**json.loads((folder / "told.json").read_text()))


# --- peers ----------------------------------------------------------------------------------------


def _vllm(load: Load, place: Place) -> list[str]:
    return [
        *(place.python("vllm"), str(HERE / "vllm_serve.py")),
        *("--backend", "openai-chat", "--base-url", place.url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", place.tokenizer),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(load.num_tokens), "--ignore-eos"),
        *("--num-prompts", str(load.num_requests), "--max-concurrency", str(load.concurrency)),
        *("--save-result", "--result-dir", str(place.folder), "--result-filename", "result.json"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
        "--disable-tqdm",
    ]


def _sglang(load: Load, place: Place) -> list[str]:
    return [
        *(place.python("sglang"), str(HERE / "sglang_rust.py")),
        *("--backend", "vllm-chat", "--base-url", place.url),
        *("--model", MODEL, "--tokenizer", place.tokenizer),
        *("--dataset-name", "random-ids", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(load.num_tokens), "--random-range-ratio", "1"),
        *("--num-prompts", str(load.num_requests), "--max-concurrency", str(load.concurrency)),
        *("--output-file", str(place.folder / "result.json"), "--disable-tqdm"),
    ]


def _read_serving(folder: Path) -> Told:
    """vLLM's and SGLang's files use the same names."""
    result = json.loads((folder / "result.json").read_text())
    return Told(
        ttft_p50_s=result["median_ttft_ms"] / 1e3,
        ttft_p99_s=result["p99_ttft_ms"] / 1e3,
        num_tokens=result["total_output_tokens"],
        decode_rate_tok_per_s=1e3 / result["median_tpot_ms"],
        details={
            "median_itl_ms": result["median_itl_ms"],
            "max_output_tokens_per_s": result["max_output_tokens_per_s"],
            "output_throughput": result["output_throughput"],
        },
    )


def _llama_benchy(load: Load, place: Place) -> list[str]:
    return [
        *(place.program("llama-benchy"), "--base-url", place.url + "/v1"),
        *("--model", MODEL, "--tokenizer", place.tokenizer, "--book-url", "local"),
        *("--pp", str(PROMPT_TOKENS), "--tg", str(load.num_tokens), "--exact-tg"),
        *("--concurrency", str(load.concurrency)),
        *("--runs", str(load.num_requests // load.concurrency)),
        *("--skip-coherence", "--latency-mode", "api", "--no-warmup", "--no-adapt-prompt"),
        *("--format", "json", "--save-result", str(place.folder / "result.json")),
    ]


def _read_llama_benchy(folder: Path) -> Told:
    """It reports no number of output tokens."""
    (result,) = json.loads((folder / "result.json").read_text())["benchmarks"]
    ttft_ms = result["e2e_ttft"]["values"]
    return Told(
        ttft_p50_s=percentile(ttft_ms, 50) / 1e3,
        ttft_p99_s=percentile(ttft_ms, 99) / 1e3,
        decode_rate_tok_per_s=percentile(result["tg_req_throughput"]["values"], 50),
    )


def _aiperf(load: Load, place: Place) -> list[str]:
    """A tokenizer's folder is refused offline, an entry of the Hugging Face cache is not."""
    return [
        *(place.program("aiperf"), "profile", "-m", MODEL, "--url", place.url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", "local/scripted"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.num_requests)),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(load.num_tokens)),
        *("--artifact-dir", str(place.folder), "--ui-type", "none", "--random-seed", "1"),
    ]


def _read_aiperf(folder: Path) -> Told:
    result: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    return Told(
        ttft_p50_s=result["time_to_first_token"]["p50"] / 1e3,
        ttft_p99_s=result["time_to_first_token"]["p99"] / 1e3,
        num_tokens=round(result["total_output_tokens"]["avg"]),
        decode_rate_tok_per_s=1e3 / result["inter_token_latency"]["p50"],
    )


# --- the table ------------------------------------------------------------------------------------

_DECIDING = frozenset({"c256", "unthrottled"})

CLIENTS: Mapping[str, Client] = {
    "ours": Client(
        version="this checkout", command=_ours, read=_read_own, loads=EVERY_LOAD | {"c1024"}
    ),
    "floor": Client(
        version="uvloop 0.23.0",
        command=_candidate("floor"),
        read=_read_own,
        loads=EVERY_LOAD - {"four_tokens"},
    ),
    "sglang": Client(version="0.5.23", command=_sglang, read=_read_serving),
    "llama-benchy": Client(
        version="0.4.0", command=_llama_benchy, read=_read_llama_benchy, num_rounds=2
    ),
    "vllm": Client(
        version="0.32.0 (CPU)",
        command=_vllm,
        read=_read_serving,
        num_rounds=2,
        loads=EVERY_LOAD - {"unthrottled"},
    ),
    "aiperf": Client(
        version="0.13.0",
        command=_aiperf,
        read=_read_aiperf,
        num_rounds=1,
        loads=EVERY_LOAD - {"unthrottled"},
    ),
    "httptools": Client(
        version="0.9.0, uvloop 0.23.0",
        command=_candidate("httptools"),
        read=_read_own,
        loads=_DECIDING,
        num_rounds=3,
    ),
    "aiohttp": Client(
        version="3.14.5, uvloop 0.23.0",
        command=_candidate("aiohttp"),
        read=_read_own,
        loads=_DECIDING,
        num_rounds=3,
    ),
    "httpx-aiohttp": Client(
        version="0.2.0, httpx 0.28.1, aiohttp 3.14.5, uvloop 0.23.0",
        command=_candidate("httpx-aiohttp"),
        read=_read_own,
        loads=_DECIDING,
        num_rounds=3,
    ),
    "ours over httpx": Client(
        version="httpx 0.28.1, uvloop 0.23.0",
        command=lambda load, place: _ours(load, place, "--transport", "httpx"),
        read=_read_own,
        loads=frozenset({"c16", "c256"}),
        num_rounds=1,
    ),
}
