"""Builds the training windows: documents -> tokens -> fixed-length windows of whole documents.

Every window begins with a document and cuts none, so each answer is learned together with its
question. Writes `windows_<length>.npz`, `held_out.npz` and `corpus.json` into the work directory
and the tokenizer into the target's directory. Knows nothing of models.

    python -m engines.demo.train.pack --work build/demo
"""

import argparse
import json
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from engines.demo.train import tokenizer as demo_tokenizer
from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.split import (
    KINDS,
    SEED,
    Counts,
    late_training,
    package_documents,
    training,
    unseen,
)

TARGET = Path("engines/demo/dense/target")
VOCAB_SIZE = 2048
TOKENIZER_DOCUMENTS = 12_000
SHORT, LONG = 512, 1024
LONG_SHARE = 0.3  # of the documents, kept for the end of the training
HELD_OUT_DOCUMENTS = 48
PADDING, QUESTION, ANSWER = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One document as tokens; the first `num_question` of them are the question."""

    tokens: tuple[int, ...]
    num_question: int

    def roles(self) -> list[int]:
        return [QUESTION] * self.num_question + [ANSWER] * (len(self.tokens) - self.num_question)


def encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Encoded]:
    questions = tokenizer.encode_batch([demo_tokenizer.question(d) for d in documents])
    answers = tokenizer.encode_batch([demo_tokenizer.answer(d) for d in documents])
    return [
        Encoded(tokens=(*asked.ids, *answered.ids), num_question=len(asked.ids))
        for asked, answered in zip(questions, answers, strict=True)
    ]


def fill(documents: Sequence[Encoded], size: int) -> list[list[Encoded]]:
    """Best fit, longest first: each document goes into the fullest window that still has room."""
    room: list[tuple[int, int]] = []  # (free tokens, window), sorted
    windows: list[list[Encoded]] = []
    for document in sorted(documents, key=lambda d: len(d.tokens), reverse=True):
        length = len(document.tokens)
        at = bisect_right(room, (length, -1))
        if at == len(room):
            windows.append([document])
            insort(room, (size - length, len(windows) - 1))
            continue
        free, window = room.pop(at)
        windows[window].append(document)
        insort(room, (free - length, window))
    return windows


def as_arrays(windows: Sequence[Sequence[Encoded]], size: int) -> dict[str, np.ndarray]:
    tokens = np.zeros((len(windows), size), dtype=np.uint16)  # 0 is <|endoftext|>
    roles = np.full((len(windows), size), PADDING, dtype=np.uint8)
    for row, window in enumerate(windows):
        flat = [token for document in window for token in document.tokens]
        tokens[row, : len(flat)] = flat
        roles[row, : len(flat)] = [role for document in window for role in document.roles()]
    return {"tokens": tokens, "roles": roles}


def write_windows(path: Path, documents: Sequence[Encoded], length: int, random: Random) -> int:
    """Windows of length + 1 tokens in random order; the number of windows."""
    windows = fill([d for d in documents if len(d.tokens) <= length + 1], length + 1)
    for window in windows:
        random.shuffle(window)
    random.shuffle(windows)
    np.savez(path, **as_arrays(windows, length + 1))
    return len(windows)


def held_out_documents(kind: str, seen: set[str], natural: bool) -> list[Document]:
    """Generated documents that evaluation prompts do not use, for the loss during training."""
    if natural:
        return package_documents("evaluation")[-HELD_OUT_DOCUMENTS:]
    return list(islice(unseen(kind, "validation", seen), HELD_OUT_DOCUMENTS))


def origin(document: Document) -> str:
    return f"{document.kind}, {document.source.split(':')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--without-packages", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    counts = Counts(packages=0) if options.without_packages else Counts()
    random = Random(SEED)
    documents = list(training(counts))
    random.shuffle(documents)
    texts = [d.user + "\n" + d.answer for d in documents[:TOKENIZER_DOCUMENTS]]
    tokenizer = demo_tokenizer.train(texts, VOCAB_SIZE)
    demo_tokenizer.save(tokenizer, TARGET)

    long_from = round(len(documents) * (1 - LONG_SHARE))
    documents += late_training(counts)
    encoded = encode(tokenizer, documents)
    num_windows = {
        str(length): write_windows(options.work / f"windows_{length}.npz", part, length, random)
        for length, part in ((SHORT, encoded[:long_from]), (LONG, encoded[long_from:]))
    }
    seen = {d.user for d in documents}
    sets = {kind: held_out_documents(kind, seen, natural=False) for kind in KINDS}
    if counts.packages:
        sets["packages"] = held_out_documents("prose", seen, natural=True)
    held_out = {}
    for kind, chosen in sets.items():
        fitting = [d for d in encode(tokenizer, chosen) if len(d.tokens) <= SHORT + 1]
        for name, array in as_arrays([[d] for d in fitting], SHORT + 1).items():
            held_out[f"{kind}.{name}"] = array
    np.savez(options.work / "held_out.npz", **held_out)

    num_tokens: Counter = Counter()
    for document, tokens in zip(documents, encoded, strict=True):
        num_tokens[origin(document)] += len(tokens.tokens)
    record = {
        "seed": SEED,
        "counts": asdict(counts),
        "num_documents": dict(Counter(origin(d) for d in documents)),
        "num_tokens": dict(num_tokens),
        "num_windows": num_windows,
    }
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    (options.work / "corpus.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
