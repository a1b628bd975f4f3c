"""A process around one in-process candidate: a load per line of stdin, an outcome per line out.

    python -m benchmarks.engine.worker --engine ours --target DIR --concurrency 16

The first line out is `{}`: it is loaded. A load is `{"prompts": [[1, 2]], "num_tokens": 96}`,
token ids, decoded greedily, every answer exactly so long. Between loads the process waits and
computes nothing. Knows one model and one way to run it, and no clock but its own.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.engine.models import KV_LEN
from benchmarks.engine.outcome import Outcome

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
clock = time.perf_counter


class Runner(Protocol):
    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Outcome: ...


class Ours:
    """The bundled engine's batch, stepped as its server steps it, without HTTP."""

    def __init__(self, options: argparse.Namespace) -> None:
        from engines.dflash2.batch import Batch
        from engines.dflash2.decode import new_workspace
        from engines.dflash2.weights import load_drafter, load_target

        dtype = DTYPES[options.precision]
        target = load_target(options.target, dtype)
        drafter = options.drafter and load_drafter(options.drafter, target, dtype)
        work = new_workspace(target, drafter, num_slots=options.concurrency, kv_len=KV_LEN)
        self.batch = Batch(work)

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Outcome:
        started_at_s = clock()
        waiting = [*reversed(prompts)]
        seen: dict[Any, list[tuple[float, Any]]] = {}
        while waiting or self.batch.num_sequences > 0:
            while waiting and self.batch.num_sequences < self.batch.num_slots:
                seen[self._add(waiting.pop(), num_tokens)] = []
            for sequence, outcome in self.batch.step():
                seen[sequence].append((clock(), outcome))
        wall_s = clock() - started_at_s
        steps = [outcome for each in seen.values() for _, outcome in each[1:]]
        return Outcome(
            wall_s=wall_s,
            answers=[[t for _, one in each for t in one.tokens] for each in seen.values()],
            decode_s=sum(each[-1][0] - each[0][0] for each in seen.values()),
            num_steps=len(steps),
            draft_s=sum(step.draft_s for step in steps),
            verify_s=sum(step.verify_s for step in steps),
        )

    def _add(self, prompt: Sequence[int], num_tokens: int) -> Any:
        from engines.dflash2.sampling import SamplingParams

        return self.batch.add(
            prompt,
            max_tokens=num_tokens,
            min_tokens=num_tokens,
            sampling=SamplingParams(),
            stop_ids=frozenset(),
        )


class Transformers:
    """`generate`, which takes all prompts of a load as one batch, padded on the left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.target = _transformers_target(options)
        self.concurrency = options.concurrency
        self.passes = Stopwatch()
        self.passes.watch_module(self.target)

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Outcome:
        started_at_s = clock()
        answers: list[list[int]] = []
        spans: list[tuple[float, Stopwatch]] = []
        for first in range(0, len(prompts), self.concurrency):
            self.passes.clear()
            answers += self._generate(prompts[first : first + self.concurrency], num_tokens)
            spans += [(clock(), self.passes.copy())] * len(
                prompts[first : first + self.concurrency]
            )
        return _outcome(clock() - started_at_s, answers, spans, drafting=None)

    def _generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(each)) + [*each] for each in prompts])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
        answers: list[list[int]] = self.target.generate(
            ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )[:, width:].tolist()
        return answers


class PyPIDFlash:
    """dflash 0.1.0's own loop on transformers: one request at a time, plain or with its drafter.

    Without a drafter it still wants one to ask for its block size, which is then told to be 1.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from dflash.model import DFlash2DraftModel

        self.target = _transformers_target(options)
        self.drafter = DFlash2DraftModel.from_pretrained(
            options.drafter, dtype=DTYPES[options.precision]
        ).eval()
        self.block_size = 1 if options.plain else None
        self.verifying, self.drafting = Stopwatch(), Stopwatch()
        self.verifying.watch_module(self.target)
        self.drafting.watch_module(self.drafter)
        self.drafter.propose = self.drafting.watched(self.drafter.propose)

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Outcome:
        from dflash.model import dflash_generate

        started_at_s = clock()
        answers: list[list[int]] = []
        spans: list[tuple[float, Stopwatch]] = []
        self.drafting.clear()
        for prompt in prompts:
            self.verifying.clear()
            ids = dflash_generate(
                self.drafter,
                self.target,
                torch.tensor([prompt]),
                num_tokens,
                stop_token_ids=None,
                block_size=self.block_size,
            )
            answers.append(ids[0, len(prompt) :].tolist())
            spans.append((clock(), self.verifying.copy()))
        return _outcome(clock() - started_at_s, answers, spans, drafting=self.drafting)


class Stopwatch:
    """When each call of something began and ended."""

    def __init__(self, calls: Sequence[tuple[float, float]] = ()) -> None:
        self.calls = [*calls]
        self._began_at_s = 0.0

    def clear(self) -> None:
        self.calls = []

    def copy(self) -> "Stopwatch":
        return Stopwatch(self.calls)

    @property
    def total_s(self) -> float:
        return sum(end - begin for begin, end in self.calls)

    def watch_module(self, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(lambda *_: self._begin())
        module.register_forward_hook(lambda *_: self._end())

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            result = function(*args, **kwargs)
            self._end()
            return result

        return call

    def _begin(self) -> None:
        self._began_at_s = clock()

    def _end(self) -> None:
        self.calls.append((self._began_at_s, clock()))


def _outcome(
    wall_s: float,
    answers: list[list[int]],
    spans: Sequence[tuple[float, Stopwatch]],
    *,
    drafting: Stopwatch | None,
) -> Outcome:
    """spans: of each request, when it ended and the target's passes, the prompt's first."""
    return Outcome(
        wall_s=wall_s,
        answers=answers,
        decode_s=sum(end_s - passes.calls[0][1] for end_s, passes in spans),
        num_steps=sum(len(passes.calls) - 1 for _, passes in spans),
        draft_s=0.0 if drafting is None else drafting.total_s,
        verify_s=sum(Stopwatch(passes.calls[1:]).total_s for _, passes in spans),
    )


def _transformers_target(options: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(
        options.target, dtype=DTYPES[options.precision]
    ).eval()
    target.generation_config.eos_token_id = None
    return target


ENGINES: Mapping[str, Callable[[argparse.Namespace], Runner]] = {
    "ours": Ours,
    "dflash": PyPIDFlash,
    "transformers": Transformers,
}


def answer_loads(runner: Runner) -> None:
    """Until stdin ends. Libraries may print: their lines go to stderr."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in itertools.chain([None], sys.stdin):
        told = {} if line is None else asdict(runner.run(**json.loads(line)))
        out.write(json.dumps(told) + "\n")
        out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--plain", action="store_true", help="leave the drafter unused")
    parser.add_argument("--precision", choices=DTYPES, default="F32")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answer_loads(ENGINES[options.engine](options))


if __name__ == "__main__":
    main()
