"""Every engine side by side, on the same weights, prompts and lengths of answer.

    python -m benchmarks.engine.side_by_side --raw FILE [--rounds 4]

Every candidate's process is started before anything is measured and stays until the end; one works
and the others wait. A round is the machine's own rates, then every load by every candidate; every
other round goes through them backwards, so that a machine that drifts drifts for all. Each run
becomes a line of FILE at once; `results` makes the tables. A candidate that fails is left out;
`--only NAME` into the same FILE runs it again, and its lines take the place of earlier ones. The
machine must do nothing else: how much others computed meanwhile is in every line.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from benchmarks.engine.candidates import CANDIDATES, LOADS, NUM_THREADS, Candidate, Load
from benchmarks.engine.models import FOLDER, REPOSITORY, Model, load_prompts, models
from benchmarks.engine.outcome import Outcome
from benchmarks.engine.processes import TICKS_PER_S, CandidateError, Cell, stop_all
from benchmarks.engine.weights_read import weights_read_of

Line: TypeAlias = Mapping[str, Any]
WARM_UP_TOKENS = 8
PACKAGES = ("torch", "transformers", "dflash")
NUM_STARTING = 2
"""At a time: more would only wait for each other."""


def start_all(wanted: Sequence[tuple[Candidate, Load]], folder: Path, cells: list[Cell]) -> None:
    """cells: where each one is put as soon as it has a process that somebody must stop."""
    known = models(folder)
    prompts = {name: load_prompts(model) for name, model in known.items()}
    for number, (candidate, load) in enumerate(wanted, start=1):
        log = folder / f"{number}.log"
        cells.append(Cell(candidate, load, known[load.model], prompts[load.model], log))
        if number % NUM_STARTING == 0 or number == len(wanted):
            for cell in cells[-NUM_STARTING:]:
                attempt(cell, cell.wait_ready)
    for cell in cells:
        attempt(cell, lambda cell=cell: cell.warm_up(WARM_UP_TOKENS))


def attempt(cell: Cell, act: Callable[[], Any]) -> Any:
    """A candidate that fails is told and left out from then on; the others go on."""
    if cell.problem is not None:
        return None
    try:
        return act()
    except (CandidateError, OSError, HTTPException) as error:
        cell.problem = str(error) or repr(error)
        say(f"{cell.name}: {cell.problem}")
        return None


def rounds(cells: Sequence[Cell], num_rounds: int) -> Iterator[Line]:
    for number in range(num_rounds):
        rates = machine()
        say(f"reads {rates['read_bytes_per_s'] / 1e9:.1f} GB/s by {rates['read_by']}")
        for cell in cells if number % 2 == 0 else reversed(cells):
            told = attempt(cell, lambda cell=cell: run(cell))
            if told is not None:
                yield {"kind": "run", "round": number, "machine": rates, **told}
    for cell in cells:
        if cell.problem is not None:
            yield {"kind": "failed", **_who(cell), "problem": cell.problem}


def _who(cell: Cell) -> Line:
    return {"candidate": asdict(cell.candidate), "load": asdict(cell.load)}


def machine() -> Line:
    """In a process of its own, whose threads and memory are gone when the next one works."""
    command = (sys.executable, "-m", "benchmarks.engine.machine", "--threads", str(NUM_THREADS))
    environment = {**os.environ, "OMP_NUM_THREADS": str(NUM_THREADS)}
    told = subprocess.run(command, env=environment, cwd=REPOSITORY, check=True, capture_output=True)
    rates: dict[str, Any] = json.loads(told.stdout)
    return rates


def run(cell: Cell) -> Line:
    busy_before_s, own_before_s = busy_s(), cell.cpu_s + time.process_time()
    outcome = cell.run()
    own_s = cell.cpu_s + time.process_time() - own_before_s
    return {
        **_who(cell),
        "outcome": asdict(outcome),
        "peak_memory_bytes": cell.peak_memory_bytes,
        "others_cpu_s": max(0.0, busy_s() - busy_before_s - own_s),
    }


def busy_s() -> float:
    """Of all cores together, since the machine began (proc(5), stat): all but idle and waiting."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = dict(zip(names, map(int, first), strict=False))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / TICKS_PER_S


def header(folder: Path, loads: Sequence[Load]) -> Line:
    known = [models(folder)[name] for name in dict.fromkeys(load.model for load in loads)]
    return {
        "kind": "header",
        "date": date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_name(),
        "threads": NUM_THREADS,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "weights": {model.name: _weights(model) for model in known},
    }


def _weights(model: Model) -> Mapping[str, int | None]:
    return asdict(weights_read_of(model.target, model.drafter))


def commit() -> str:
    """Of this checkout, with a plus where the engine has lines that are in no commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", *arguments), cwd=REPOSITORY, check=True, capture_output=True, text=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "engines/dflash2")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(os.sched_getaffinity(0))} cores"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", type=Path, default=FOLDER, help="of benchmarks.engine.models")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    options = parser.parse_args()
    known = models(options.models)
    wanted = [
        (candidate, load)
        for load in LOADS
        for candidate in CANDIDATES
        if options.only in f"{candidate.name}, {load.name}"
        and candidate.can(load, known[load.model])
    ]
    cells: list[Cell] = []
    with ExitStack() as stack, options.raw.open("a") as raw:
        stack.callback(stop_all, cells)
        signal.signal(signal.SIGTERM, lambda *_: end(cells))
        raw.write(json.dumps(header(options.models, LOADS)) + "\n")
        raw.flush()
        start_all(wanted, options.models, cells)
        began_s = time.monotonic()
        for line in rounds(cells, options.rounds):
            raw.write(json.dumps(line) + "\n")
            raw.flush()
            say(f"{time.monotonic() - began_s:6.1f} s  {_told(line)}")


def end(cells: Sequence[Cell]) -> NoReturn:
    """At a time limit: the processes first, because a request waits for its answer until then."""
    stop_all(cells)
    sys.exit("stopped")


def _told(line: Line) -> str:
    name = f"{Candidate(**line['candidate']).name}, {Load(**line['load']).name}"
    if line["kind"] == "failed":
        return f"{name}: failed"
    return f"{name}: {Outcome(**line['outcome']).tok_per_s:.1f} tok/s"


if __name__ == "__main__":
    main()
