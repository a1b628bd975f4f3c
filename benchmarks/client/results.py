"""The tables of RESULTS.md from a raw file: `python -m benchmarks.client.results RAW`.

Every cell is the median over a client's runs; the tables say over how many. A run
that failed or that did not carry the whole load is named below the tables and enters none.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.client.clients import CLIENTS
from benchmarks.client.loads import LOADS

Run: TypeAlias = Mapping[str, Any]
Runs: TypeAlias = Mapping[tuple[str, str], Sequence[Run]]
"""(client, load) -> its runs."""

ADDED_TTFT_LOADS = ("c1", "c16", "c64", "c256")
TARGETS_MS = {"c1": "0.5 / 1.6", "c16": "1.5 / 4", "c64": "4 / 12", "c256": "1.3 x the floor"}


def read(path: Path) -> tuple[Runs, list[str]]:
    """The good runs, and what became of the others."""
    good: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    told = []
    for line in path.read_text().splitlines():
        run: Run = json.loads(line)
        problem = run["failed"] or _incomplete(run)
        if problem:
            told.append(f"{run['client']}, {run['load']}, round {run['round']}: {problem}")
        else:
            good[run["client"], run["load"]].append(run)
    return good, told


def _incomplete(run: Run) -> str | None:
    load = LOADS[run["load"]]
    if run["in_flight_max"] < load.concurrency:
        return f"only {run['in_flight_max']} in flight"
    expected = load.num_requests * load.num_events
    if run["num_events"] == expected and run["num_whole"] == load.num_requests:
        return None
    return f"{run['num_whole']} answers, {run['num_events']} of {expected} events"


# --- cells ----------------------------------------------------------------------------------------


def _median(runs: Sequence[Run], value: Callable[[Run], float | None]) -> float | None:
    values = [each for each in map(value, runs) if each is not None]
    return median(values) if values else None


def _shown(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:,.{digits}f}"


def _added_ms(percent: int) -> Callable[[Run], float]:
    return lambda run: 1e3 * (run["told"][f"ttft_p{percent}_s"] - run[f"true_ttft_p{percent}_s"])


def _cpu_ms_per_1000(run: Run) -> float:
    return float(1e6 * run["cpu_s"] / run["num_events"])


def _detail_ms_per_1000(name: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        used_s = run["told"]["details"].get(name)
        return None if used_s is None else 1e6 * used_s / run["num_events"]

    return value


def _reads_per_event(run: Run) -> float | None:
    reads = run["told"]["details"].get("num_reads")
    return None if reads is None else reads / run["num_events"]


def _events_per_s(run: Run) -> float:
    return float(run["num_events"] / run["window_s"])


def _ideal_percent(run: Run) -> float | None:
    """None for a load that asks for no rate."""
    return 100 * run["ideal_s"] / run["window_s"] if run["ideal_s"] else None


def _rate_error_percent(run: Run) -> float | None:
    told = run["told"]["decode_rate_tok_per_s"]
    return None if told is None else 100 * (told / run["true_decode_rate_tok_per_s"] - 1)


# --- tables ---------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(row) + " |"
    yield ""


def _measured(runs: Runs, load: str) -> list[str]:
    return [client for client in CLIENTS if runs.get((client, load))]


def added_ttft(runs: Runs) -> Iterator[str]:
    yield "### What a client adds to the time to first token, p50 / p99, ms"
    yield ""
    rows = [["at most", *(TARGETS_MS[load] for load in ADDED_TTFT_LOADS)]]
    for client in CLIENTS:
        cells = [_added_cell(runs.get((client, load), ())) for load in ADDED_TTFT_LOADS]
        if any(cells):
            rows.append([client, *cells])
    yield from _table(["client", *ADDED_TTFT_LOADS], rows)


def _added_cell(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    p50, p99 = _median(runs, _added_ms(50)), _median(runs, _added_ms(99))
    return f"{_shown(p50, 2)} / {_shown(p99, 2)} ({len(runs)})"


def cost(runs: Runs, load: str) -> Iterator[str]:
    yield f"### Client CPU per 1000 events, ms: {load}"
    yield ""
    rows = []
    for client in _measured(runs, load):
        mine = runs[client, load]
        columns: list[tuple[Callable[[Run], float | None], int]] = [
            (_cpu_ms_per_1000, 1),
            (_detail_ms_per_1000("load_path_cpu_s"), 1),
            (_detail_ms_per_1000("parse_cpu_s"), 1),
            (_reads_per_event, 2),
            (_events_per_s, 0),
            (_ideal_percent, 0),
            (lambda run: run["resident_max_bytes"] / 1e6, 0),
        ]
        cells = (_shown(_median(mine, value), digits) for value, digits in columns)
        rows.append([client, str(len(mine)), *cells])
    head = ["client", "runs", "all its processes", "load path alone", "parsing, later"]
    more = ["reads per event", "events/s", "% of the ideal rate", "memory, MB"]
    yield from _table([*head, *more], rows)


def four_tokens(runs: Runs) -> Iterator[str]:
    yield "### Four tokens per event: the decode rate that each client reports"
    yield ""
    rows = []
    for client in _measured(runs, "four_tokens"):
        mine = runs[client, "four_tokens"]
        rows.append(
            [
                client,
                str(len(mine)),
                _shown(_median(mine, lambda run: run["told"]["decode_rate_tok_per_s"]), 2),
                _shown(_median(mine, lambda run: run["true_decode_rate_tok_per_s"]), 2),
                _shown(_median(mine, _rate_error_percent), 3),
                _shown(_median(mine, lambda run: run["told"]["num_tokens"]), 0),
                _details(mine[-1]),
            ]
        )
    head = [
        "client",
        "runs",
        "tok/s told",
        "tok/s sent",
        "error, %",
        "tokens told",
        "by its own names",
    ]
    yield from _table(head, rows)


def _details(run: Run) -> str:
    if run["client"] == "ours":
        return ""
    return ", ".join(f"{name} {value:.2f}" for name, value in run["told"]["details"].items())


def many_streams(runs: Runs) -> Iterator[str]:
    yield "### 1024 streams for a minute, 10 events/s each"
    yield ""
    rows: list[list[str]] = []
    for run in runs.get(("ours", "c1024"), ()):
        details = run["told"]["details"]
        growth = run["resident_growth_bytes"]
        rows.append(
            [
                f"{run['num_events']:,}",
                _shown(run["num_events"] - details["num_output_events"], 0),
                _shown(details["in_flight_max"], 0),
                _shown(None if growth is None else growth / 1e6, 1),
                *(_shown(1e3 * details[f"send_lateness_p{p}_s"], 2) for p in (50, 99)),
                *(_shown(1e3 * details[f"event_delay_p{p}_s"], 2) for p in (50, 99)),
                _shown(_cpu_ms_per_1000(run), 1),
            ]
        )
    head = ["events sent", "lost", "in flight", "memory growth, MB", "send lateness p50, ms", "p99"]
    more = ["event seen after it was sent, p50, ms", "p99", "CPU per 1000 events, ms"]
    yield from _table([*head, *more], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    runs, problems = read(parser.parse_args().raw)
    lines = [
        *added_ttft(runs),
        *cost(runs, "c256"),
        *cost(runs, "unthrottled"),
        *four_tokens(runs),
        *many_streams(runs),
        *(f"* left out: {problem.splitlines()[0]}" for problem in problems),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
