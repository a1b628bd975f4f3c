"""Where the time of a decode step goes: torch's profiler over a batch that only decodes.

    python -m benchmarks.engine.profile --model demo-dense --drafts --concurrency 16

The functions of `engines.dflash2.kernels` are C behind ctypes, which the profiler does not see, so
each is given a name in its table; what stands under `step` alone is Python. Profiling slows small
operations down: the shares are told here, the times in RESULTS.md.
"""

import argparse
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.engine.models import FOLDER, KV_LEN, load_prompts, models
from engines.dflash2 import kernels
from engines.dflash2.batch import Batch
from engines.dflash2.decode import new_workspace
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.weights import load_drafter, load_target

NOT_WORK = ("suits", "library")
NUM_WARM_STEPS = 5
NUM_ROWS = 25


def name_kernels() -> None:
    for name, function in inspect.getmembers(kernels, inspect.isfunction):
        if function.__module__ == kernels.__name__ and name[0] != "_" and name not in NOT_WORK:
            setattr(kernels, name, _named(f"kernels.{name}", function))


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=FOLDER)
    parser.add_argument("--model", default="demo-dense")
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = models(options.models)[options.model]
    target = load_target(model.target)
    drafter = load_drafter(model.drafter, target) if options.drafts and model.drafter else None
    batch = Batch(new_workspace(target, drafter, num_slots=options.concurrency, kv_len=KV_LEN))
    num_tokens = KV_LEN // 2
    for prompt in load_prompts(model)[: options.concurrency]:
        batch.add(
            prompt,
            max_tokens=num_tokens,
            min_tokens=num_tokens,
            sampling=SamplingParams(),
            stop_ids=frozenset(),
        )
    num_read = 0
    while num_read < options.concurrency:
        num_read += sum(outcome.is_prefill for _, outcome in batch.step())
    for _ in range(NUM_WARM_STEPS):
        batch.step()
    name_kernels()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(options.steps):
            with record_function("step"):
                batch.step()
    print(profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=NUM_ROWS))


if __name__ == "__main__":
    main()
