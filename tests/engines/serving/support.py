"""A tiny random pair, the real process that serves it, and a server with scripted rounds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from engines.dflash2.config import load_drafter_config, load_target_config
from engines.dflash2.decode import Round
from engines.dflash2.drafter import DFlash2DraftModel
from engines.dflash2.engine import Engine
from engines.dflash2.limits import MAX_WAITING
from engines.dflash2.listener import StoppableServer, http_server
from engines.dflash2.scheduler import Scheduler
from engines.dflash2.server import Facts, Server
from engines.dflash2.target import Qwen3ForCausalLM
from engines.dflash2.tokenizer import Tokenizer

CHECKOUT = Path(__file__).parents[3]
KV_LEN = 256
VOCAB_SIZE = 320
STOP_TOKEN = "<|im_end|>"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", STOP_TOKEN, "<|mask|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "Wir prüfen naïve cafés; 日本語 und 🚀 gehören dazu.",
]


@dataclass(frozen=True, kw_only=True)
class Pair:
    target: Path
    drafter: Path


def write_target(folder: Path) -> None:
    folder.mkdir()
    write_tokenizer(folder)
    write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "eos_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
            "dtype": "bfloat16",
        },
    )
    with torch.device("meta"):
        model = Qwen3ForCausalLM(load_target_config(folder))
    write_random_tensors(model, folder, seed=1)


def write_drafter(folder: Path) -> None:
    folder.mkdir()
    write_json(
        folder / "config.json",
        {
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "is_causal": False,
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 64,
            "use_sliding_window": True,
            "num_target_layers": 4,
            "dtype": "bfloat16",
            "dflash_config": {
                "block_size": 8,
                "conv_group_size": 16,
                "conv_kernel_size": 2,
                "mask_token_id": SPECIAL_TOKENS.index("<|mask|>"),
                "selector_rank": 16,
                "selector_top_k": 16,
                "target_layer_ids": [0, 1, 2],
            },
        },
    )
    with torch.device("meta"):
        model = DFlash2DraftModel(load_drafter_config(folder))
    write_random_tensors(model, folder, seed=2)


def write_random_tensors(model: torch.nn.Module, folder: Path, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    tensors = {
        name: (
            torch.ones(tensor.shape)
            if tensor.ndim == 1
            else 0.3 * torch.randn(tensor.shape, generator=noise)
        ).to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")


def write_tokenizer(folder: Path) -> None:
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(
        TRAINING_TEXT * 3,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    library.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"chat_template": CHAT_TEMPLATE, "eos_token": STOP_TOKEN},
    )
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [SPECIAL_TOKENS.index(STOP_TOKEN), 0]},
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


# --- the real process ---


@dataclass(frozen=True, kw_only=True)
class Served:
    process: subprocess.Popen[str]
    port: int
    url: str


@contextmanager
def serving(pair: Pair, *options: str) -> Iterator[Served]:
    """The process itself on a free port, stopped with Ctrl-C at the end, which must end it well."""
    command = [sys.executable, "-m", "engines.dflash2", "serve", "--model", str(pair.target)]
    command += ["--served-name", "tiny", "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        port = int(greeting.split("http://127.0.0.1:")[1].split()[0])
        yield Served(process=process, port=port, url=f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def environment() -> dict[str, str]:
    # The tiny drafter's rows are no multiples of 64, so it is served as it is.
    return {**os.environ, "OMP_NUM_THREADS": "1", "DFLASH2_AUTOCONVERT": "0"}


# --- rounds from a script ---


def prefill(token: int, finish_reason: str | None = None) -> Round:
    return Round(
        tokens=(token,),
        num_drafted=0,
        num_accepted=0,
        num_trimmed=0,
        is_prefill=True,
        draft_s=0.0,
        verify_s=0.001,
        num_sharing=1,
        finish_reason=finish_reason,
    )


def step(
    tokens: Sequence[int], *, drafted: int = 7, trimmed: int = 0, finish_reason: str | None = None
) -> Round:
    """A round that emitted these tokens; what was trimmed was decided, too."""
    return Round(
        tokens=tuple(tokens),
        num_drafted=drafted,
        num_accepted=len(tokens) + trimmed - 1,
        num_trimmed=trimmed,
        is_prefill=False,
        draft_s=0.001,
        verify_s=0.002,
        num_sharing=1,
        finish_reason=finish_reason,
    )


Script = Callable[[], Iterator[Round]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScriptedSequence:
    rounds: Iterator[Round]
    started_at_s: float


class ScriptedLoop:
    """Stands for the batch: every sequence gets the script's rounds, one in each step."""

    num_slots = 1
    num_bytes = 4096
    num_used_positions = 0

    def __init__(self, script: Script) -> None:
        self._script = script
        self._sequences: list[ScriptedSequence] = []

    def add(self, prompt_ids: tuple[int, ...], **_: object) -> ScriptedSequence:
        sequence = ScriptedSequence(rounds=self._script(), started_at_s=time.perf_counter())
        self._sequences.append(sequence)
        return sequence

    def remove(self, sequence: ScriptedSequence) -> None:
        self._sequences.remove(sequence)

    def clear(self) -> None:
        self._sequences.clear()

    def step(self) -> list[tuple[ScriptedSequence, Round]]:
        found = [(sequence, next(sequence.rounds)) for sequence in self._sequences]
        self._sequences = [each for each, round_ in found if round_.finish_reason is None]
        return found


def scripted(
    tokenizer: Tokenizer, script: Script, **options: Any
) -> AbstractContextManager[httpx.Client]:
    """A client of a server in this process, whose every request gets the script's rounds."""
    return in_this_process(scripted_engine(tokenizer, script), **options)


def scripted_engine(tokenizer: Tokenizer, script: Script) -> Engine:
    return Engine(
        loop=ScriptedLoop(script),
        tokenizer=tokenizer,
        stop_ids=frozenset({SPECIAL_TOKENS.index(STOP_TOKEN)}),
        kv_len=KV_LEN,
        vocab_size=VOCAB_SIZE,
        depth=7,
        block_size=8,
    )


@contextmanager
def in_this_process(engine: Engine, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server that runs this engine in threads of the test's own process."""
    with (
        running(engine, **options) as server,
        httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client,
    ):
        yield client


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server in a thread. A signal would reach the main thread: `signal` stands in for one."""

    url: str
    http: StoppableServer
    thread: threading.Thread

    def signal(self) -> None:
        self.http.handle_exit(signal.SIGTERM, None)


@contextmanager
def running(
    engine: Engine,
    *,
    stop_timeout_s: float = 0.0,
    max_waiting: int = MAX_WAITING,
    **server_options: Any,
) -> Iterator[Running]:
    scheduler = Scheduler(engine, max_waiting=max_waiting)
    facts = Facts(
        served_name="tiny",
        model_dir=Path("target"),
        drafter_weights=None,
        drafter_dir=None if engine.depth is None else Path("drafter"),
        dtype="float32",
        kernels="torch (a script)",
        num_threads=1,
        version=None,
        commit=None,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(engine, scheduler, facts, **server_options)
    http = http_server(server, stop_timeout_s=stop_timeout_s)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]})
    scheduler.start()
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield Running(url=url, http=http, thread=thread)
    finally:
        http.should_exit = True
        thread.join(timeout=10)
        assert scheduler.join(timeout_s=10)


# --- reading answers ---


def events(response: httpx.Response) -> list[dict]:
    """The JSON of a stream's events; the stream must end with [DONE], once."""
    datas = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert datas[-1] == "[DONE]"
    return [json.loads(data) for data in datas[:-1]]


def stream(client: httpx.Client, **body: object) -> list[dict]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    response = client.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response)


def complete(client: httpx.Client, **body: object) -> dict:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(stream_events: list[dict]) -> str:
    choices = [choice for event in stream_events for choice in event["choices"]]
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
    )


def counters(client: httpx.Client) -> dict[str, float]:
    """The /metrics page as series -> value, model label taken off."""
    lines = client.get("/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {
        name.removeprefix("dflash2:")
        .replace('model_name="tiny",', "")
        .replace('{model_name="tiny"}', ""): float(value)
        for name, value in samples
    }


def assert_tokens_add_up(page: dict[str, float]) -> None:
    """The identity of the books at a quiet moment, however requests ended."""
    assert page["generation_tokens_total"] == (
        page["requests_total"]
        + page["spec_decode_num_drafts_total"]
        + page["plain_steps_total"]
        + page["spec_decode_num_accepted_tokens_total"]
        - page["trimmed_tokens_total"]
    )
    assert page["num_requests_running"] == page["num_requests_waiting"] == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# --- connections without a client, and answers that wait ---

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connect(client: httpx.Client, *, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:  # before connecting, or it does not bound the window
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((client.base_url.host, client.base_url.port))
    return connection


def send(connection: socket.socket, **body: Any) -> None:
    """Send a request, and leave its answer to whoever reads it."""
    content = json.dumps({"prompt": "x", **body}).encode()
    connection.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)


class GatedScript:
    """One token, then one more for each permit; after `limit` of them the answer ends."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self.permits = threading.Semaphore(0)

    def __call__(self) -> Iterator[Round]:
        yield prefill(40)
        for _ in range(self._limit - 2):
            assert self.permits.acquire(timeout=10)
            yield step([41])
        yield step([41], finish_reason="length")

    def let_go_until(self, condition: Callable[[], bool]) -> None:
        """The engine looks after each round; without one it would not notice."""

        def released() -> bool:
            self.permits.release()
            return condition()

        wait_until(released)


class Turnstile:
    """Stands before an engine's steps and lets one pass for each permit."""

    def __init__(self, engine: Engine) -> None:
        self._step = engine.step
        self._permits = threading.Semaphore(0)
        self._num_permits = 0
        self._num_arrived = 0

    def __call__(self) -> list[Any]:
        self._num_arrived += 1
        assert self._permits.acquire(timeout=10)
        return self._step()

    def let_pass(self, num_steps: int) -> None:
        """Returns before the step after those: what they did is booked, and who left is gone."""
        self._num_permits += num_steps
        self._permits.release(num_steps)
        wait_until(lambda: self._num_arrived == self._num_permits + 1)

    def open(self) -> None:
        self._permits.release(10_000)
