"""A cell's process: started once, given loads, asked for its memory, stopped.

A worker is told its load on stdin; a server gets a request per prompt, as many at a time as the
load says, not streamed, so that it does the least. Knows the two servers' fields and no statistics.
"""

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from benchmarks.engine.candidates import NUM_THREADS, Candidate, Load, command
from benchmarks.engine.models import REPOSITORY, Model
from benchmarks.engine.outcome import Outcome

START_LIMIT_S = 180.0
LOAD_LIMIT_S = 300.0
POLL_S = 0.05
STOP_LIMIT_S = 5.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(NUM_THREADS),
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DFLASH2_AUTOCONVERT": "0",  # the drafter is measured as it ships
}


class CandidateError(Exception):
    """A candidate that did not start, or did not do its load."""


class Cell:
    """A candidate and its load. `run` does the load once, and nothing runs before it or after."""

    def __init__(
        self, candidate: Candidate, load: Load, model: Model, prompts: list[list[int]], log: Path
    ) -> None:
        self.candidate, self.load, self.log = candidate, load, log
        self.problem: str | None = None  # why it is left out
        self.prompts = prompts[: load.num_requests]
        self.port = _free_port()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command(candidate, load, model, self.port),
                env={**os.environ, **ENVIRONMENT},
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=file if candidate.is_server else subprocess.PIPE,
                stderr=file,
            )

    @property
    def name(self) -> str:
        return f"{self.candidate.name}, {self.load.name}"

    def wait_ready(self) -> None:
        if not self.candidate.is_server:
            self._line(START_LIMIT_S)
            return
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._is_healthy():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise self._error("did not start")
            time.sleep(POLL_S)

    def warm_up(self, num_tokens: int) -> None:
        """The load's shape, but short: what is made on first use is made now."""
        self._do(num_tokens)

    def run(self) -> Outcome:
        return self._do(self.load.num_tokens)

    def _do(self, num_tokens: int) -> Outcome:
        if self.candidate.is_server:
            return self._ask_server(num_tokens)
        assert self.process.stdin is not None
        load = {"prompts": self.prompts, "num_tokens": num_tokens}
        self.process.stdin.write(json.dumps(load).encode() + b"\n")
        self.process.stdin.flush()
        return Outcome(**self._line(LOAD_LIMIT_S))

    @property
    def peak_memory_bytes(self) -> int:
        """Resident, since the process began."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / TICKS_PER_S

    # --- a worker ---

    def _line(self, limit_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise self._error(f"said nothing within {limit_s:.0f} s, or ended")
        told: dict[str, Any] = json.loads(line)
        return told

    # --- a server ---

    def _is_healthy(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _ask_server(self, num_tokens: int) -> Outcome:
        path, body, read = (
            ("/completion", _llamacpp_body, _read_llamacpp)
            if self.candidate.way == "llama.cpp"
            else ("/v1/completions", _our_body, _read_ours)
        )
        started_at_s = time.perf_counter()
        with ThreadPoolExecutor(self.load.concurrency) as threads:
            replies = [
                *threads.map(
                    lambda prompt: self._post(path, body(prompt, num_tokens)), self.prompts
                )
            ]
        wall_s = time.perf_counter() - started_at_s
        return together(wall_s, [read(reply) for reply in replies])

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LOAD_LIMIT_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise self._error(f"answered {answer.status}: {text.decode(errors='replace')}")
        reply: dict[str, Any] = json.loads(text)
        return reply

    def _error(self, problem: str) -> CandidateError:
        words = self.log.read_text(errors="replace").strip()[-500:]
        return CandidateError(f"{self.name} {problem}; the last words in {self.log}: {words}")


def stop_all(cells: Sequence[Cell]) -> None:
    """All are told at once; llama-server may take a signal and yet never end."""
    for cell in cells:
        cell.process.terminate()
    deadline_s = time.monotonic() + STOP_LIMIT_S
    for cell in cells:
        try:
            cell.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            cell.process.kill()
            cell.process.wait()


def together(wall_s: float, replies: Sequence[Outcome]) -> Outcome:
    """The outcome of a load from those of its requests, whose wall times overlap."""
    draft_s = [reply.draft_s for reply in replies if reply.draft_s is not None]
    verify_s = [reply.verify_s for reply in replies if reply.verify_s is not None]
    return Outcome(
        wall_s=wall_s,
        answers=[answer for reply in replies for answer in reply.answers],
        decode_s=sum(reply.decode_s for reply in replies),
        num_steps=sum(reply.num_steps for reply in replies),
        draft_s=sum(draft_s) if len(draft_s) == len(replies) else None,
        verify_s=sum(verify_s) if len(verify_s) == len(replies) else None,
    )


def _our_body(prompt: Sequence[int], num_tokens: int) -> Mapping[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def _read_ours(reply: Mapping[str, Any]) -> Outcome:
    timings = reply["timings"]
    return Outcome(
        wall_s=0.0,
        answers=[reply["choices"][0]["token_ids"]],
        decode_s=timings["predicted_ms"] / 1e3,
        num_steps=timings["rounds"] + timings["plain_steps"],
        draft_s=timings["draft_ms"] / 1e3,
        verify_s=timings["verify_ms"] / 1e3,
    )


def _llamacpp_body(prompt: Sequence[int], num_tokens: int) -> Mapping[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": num_tokens,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }


def _read_llamacpp(reply: Mapping[str, Any]) -> Outcome:
    """It does not tell its rounds. Each emits one token more than it accepts, and none is cut off:
    near the end it drafts no more than may still come (b11434, server-context).
    """
    timings, answer = reply["timings"], reply["tokens"]
    return Outcome(
        wall_s=0.0,
        answers=[answer],
        decode_s=timings["predicted_ms"] / 1e3,
        num_steps=len(answer) - 1 - timings.get("draft_n_accepted", 0),
        draft_s=None,
        verify_s=None,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
