"""Prints the model card's tables from the stored evaluations, so that no number is typed.

python -m engines.demo.train.tables
"""

import json
from pathlib import Path

from engines.demo.train.corpus.split import KINDS

EVALUATIONS = Path("engines/demo/eval")
VARIANTS = ("full", "selector_off", "convolutions_off")


def read(name: str) -> dict:
    return json.loads((EVALUATIONS / f"{name}.json").read_text(encoding="utf-8"))


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


def ablations(records: dict[str, dict]) -> str:
    head = ["kind", *(name.replace("_", " ") for name in records)]
    summaries = {name: sections(record) for name, record in records.items()}
    rows = [
        [kind, *(figure(each[kind]["acceptance_length"]) for each in summaries.values())]
        for kind in next(iter(summaries.values()))
    ]
    return table(head, rows)


def main() -> None:
    records = {name: read(name) for name in VARIANTS}
    print(quality(records["full"]), acceptance(records["full"]), ablations(records), sep="\n\n")


if __name__ == "__main__":
    main()
