"""Prints a model card's tables from the stored evaluations, so that no number is typed.

python -m engines.demo.train.tables
python -m engines.demo.train.tables --pair hybrid
"""

import argparse
import json
from pathlib import Path

from engines.demo.train.corpus.split import KINDS
from engines.demo.train.pairs import add_pair

EVALUATIONS = {"dense": Path("engines/demo/eval"), "hybrid": Path("engines/demo/eval/hybrid")}
# What each card compares: evaluation -> its column's title.
COLUMNS = {
    "dense": {
        "full": "full",
        "selector_off": "selector off",
        "convolutions_off": "convolutions off",
    },
    "hybrid": {
        "mtp1": "MTP, k = 1",
        "mtp2": "MTP, k = 2",
        "mtp3": "MTP, k = 3",
        "full": "DFlash 2",
    },
}


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def figure(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(head), row(["---"] * len(head)), *map(row, rows)])


def sections(record: dict) -> dict[str, dict]:
    """Each kind's summary and, last, the one over all kinds."""
    return {**{kind: record["by_kind"][kind] for kind in KINDS}, "all five": record["all"]}


def quality(record: dict) -> str:
    head = ["kind", "prompts", "tokens, mean", "ended", "loops", "parses", "agrees"]
    rows = [
        [
            kind, str(s["num_prompts"]), figure(s["mean_tokens"], 0), figure(s["ended"]),
            figure(s["loops"]), figure(s["parses"]), figure(s["agrees"]),
        ]
        for kind, s in sections(record).items()
    ]  # fmt: skip
    return table(head, rows)


def acceptance(record: dict) -> str:
    head = ["kind", "acceptance length", *(f"at {n}" for n in range(1, 8)), "decode speed-up"]
    rows = [
        [
            kind, figure(s["acceptance_length"]), *map(figure, s["acceptance_by_position"]),
            figure(s.get("decode_speedup")),
        ]
        for kind, s in sections(record).items()
    ]  # fmt: skip
    return table(head, rows)


def lengths(records: dict[str, dict]) -> str:
    """Acceptance lengths, a column for each record."""
    head = ["kind", *records]
    summaries = {name: sections(record) for name, record in records.items()}
    rows = [
        [kind, *(figure(each[kind]["acceptance_length"]) for each in summaries.values())]
        for kind in next(iter(summaries.values()))
    ]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    options = parser.parse_args()
    folder = EVALUATIONS[options.pair.name]
    full = read(folder, "full")
    columns = COLUMNS[options.pair.name]
    compared = lengths({title: read(folder, name) for name, title in columns.items()})
    print(quality(full), acceptance(full), compared, sep="\n\n")


if __name__ == "__main__":
    main()
