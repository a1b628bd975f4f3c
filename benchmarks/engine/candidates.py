"""Who is compared: each candidate's name, what it can, and the command that starts it.

Every cell (a candidate under a load) is a process of its own, so that its memory is its alone. Two
of them are servers and are asked over HTTP, ours among them: their figures hold a request's way
through the kernel, JSON and the tokenizer, which the in-process ones do not have.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.engine.models import KV_LEN, LLAMA_SERVER, Model, Precision

NUM_THREADS = 2
NUM_PROPOSALS = 7

Way: TypeAlias = Literal["ours", "ours served", "PyPI dflash", "transformers", "llama.cpp"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    way: Way
    precision: Precision
    drafts: bool

    @property
    def name(self) -> str:
        return f"{self.way} {'DFlash 2' if self.drafts else 'plain'} {self.precision}"

    @property
    def is_server(self) -> bool:
        return self.way in ("ours served", "llama.cpp")

    def can(self, load: "Load", model: Model) -> bool:
        """PyPI's dflash wants a drafter in order to run plain, too, and takes one request."""
        if self.way == "PyPI dflash":
            return model.drafter is not None and load.concurrency == 1
        return model.drafter is not None or not self.drafts


@dataclass(frozen=True, kw_only=True)
class Load:
    """The same for every candidate: the first prompts, so many at a time, answers so long."""

    model: str
    concurrency: int
    num_requests: int
    num_tokens: int

    @property
    def name(self) -> str:
        return f"{self.model}, c = {self.concurrency}"


LOADS = (
    Load(model="demo-dense", concurrency=1, num_requests=5, num_tokens=96),
    Load(model="demo-dense", concurrency=16, num_requests=16, num_tokens=96),
    Load(model="smollm2-135m", concurrency=1, num_requests=3, num_tokens=32),
    Load(model="smollm2-135m", concurrency=16, num_requests=16, num_tokens=32),
)

CANDIDATES = (
    Candidate(way="ours", precision="F32", drafts=False),
    Candidate(way="ours", precision="F32", drafts=True),
    Candidate(way="ours served", precision="F32", drafts=False),
    Candidate(way="ours served", precision="F32", drafts=True),
    Candidate(way="PyPI dflash", precision="F32", drafts=False),
    Candidate(way="PyPI dflash", precision="F32", drafts=True),
    Candidate(way="transformers", precision="F32", drafts=False),
    Candidate(way="llama.cpp", precision="F32", drafts=False),
    Candidate(way="llama.cpp", precision="F32", drafts=True),
    Candidate(way="llama.cpp", precision="BF16", drafts=False),
    Candidate(way="llama.cpp", precision="BF16", drafts=True),
)

_ENGINE_OF_WORKER = {"ours": "ours", "PyPI dflash": "dflash", "transformers": "transformers"}


def command(candidate: Candidate, load: Load, model: Model, port: int) -> Sequence[str]:
    if candidate.way == "llama.cpp":
        return _llamacpp(candidate, load, model, port)
    if candidate.way == "ours served":
        return _served(candidate, load, model, port)
    return _worker(candidate, load, model)


def _worker(candidate: Candidate, load: Load, model: Model) -> Sequence[str]:
    wants_drafter = candidate.drafts or candidate.way == "PyPI dflash"
    return (
        *(sys.executable, "-m", "benchmarks.engine.worker"),
        *("--engine", _ENGINE_OF_WORKER[candidate.way]),
        *("--target", str(model.target)),
        *(("--drafter", str(model.drafter)) if wants_drafter else ()),
        *(() if candidate.drafts else ("--plain",)),
        *("--precision", candidate.precision),
        *("--concurrency", str(load.concurrency)),
        *("--threads", str(NUM_THREADS)),
    )


def _served(candidate: Candidate, load: Load, model: Model, port: int) -> Sequence[str]:
    assert candidate.precision == "F32"
    return (
        *(sys.executable, "-m", "engines.dflash2", "serve", "--port", str(port)),
        *("--model", str(model.target)),
        *(("--dflash2", "on", "--dflash2-model", str(model.drafter)) if candidate.drafts else ()),
        *("--kv-len", str(KV_LEN)),
        *("--max-concurrent-requests", str(load.concurrency)),
        *("--threads", str(NUM_THREADS)),
    )


def _llamacpp(candidate: Candidate, load: Load, model: Model, port: int) -> Sequence[str]:
    """In float32 everything is, the cache too; in BF16 the cache is what llama.cpp takes itself."""
    wide = candidate.precision == "F32"
    drafter = str(model.drafter_gguf(candidate.precision))
    return (
        *(str(LLAMA_SERVER), "--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(model.target_gguf(candidate.precision))),
        *("--threads", str(NUM_THREADS)),
        *("--parallel", str(load.concurrency)),
        *("--ctx-size", str(load.concurrency * KV_LEN)),
        *("--cache-ram", "0"),
        *(("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off") * wide),
        *(_llamacpp_drafter(drafter, wide=wide) if candidate.drafts else ()),
    )


def _llamacpp_drafter(path: str, *, wide: bool) -> Sequence[str]:
    types = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32")
    return (
        *("--spec-type", "draft-dflash", "--spec-draft-model", path),
        *("--spec-draft-n-max", str(NUM_PROPOSALS)),
        *("--spec-draft-threads", str(NUM_THREADS)),
        *(types * wide),
    )
