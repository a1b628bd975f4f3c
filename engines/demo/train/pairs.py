"""The demo pairs by name: what differs between them, so that one set of programs makes both.

Knows shapes, folders and which modules a pair is made of; nothing of data or of how to train.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engines.demo.train.hybrid_model import HybridShape, TrainedHybridTarget
from engines.demo.train.model import TargetShape, TrainedTarget

DEMO = Path("engines/demo")


@dataclass(frozen=True, kw_only=True)
class Pair:
    name: str
    shape: TargetShape | HybridShape
    target_layer_ids: tuple[int, ...]  # what the drafter reads
    embedding_from: str | None = None  # a pair whose embedding, made narrower, training begins with

    @property
    def target(self) -> Path:
        return DEMO / self.name / "target"

    @property
    def drafter(self) -> Path:
        return DEMO / self.name / "drafter"

    @property
    def work(self) -> Path:
        return Path("build") / ("demo" if self.name == "dense" else f"demo-{self.name}")

    def new_target(self) -> TrainedTarget | TrainedHybridTarget:
        """The training model with fresh random weights, but for a borrowed embedding."""
        if not isinstance(self.shape, HybridShape):
            return TrainedTarget(self.shape)
        model = TrainedHybridTarget(self.shape)
        if self.embedding_from is not None:
            lend_embedding(PAIRS[self.embedding_from].target, model.model.embed_tokens.weight)
        return model


@torch.no_grad()
def lend_embedding(folder: Path, weight: Tensor) -> None:
    """Give `weight` the other embedding's directions of largest variance, at its own size."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        wide = file.get_tensor("model.embed_tokens.weight").float()
    _, directions = torch.linalg.eigh(wide.T @ wide)
    narrow = wide @ directions[:, -weight.shape[1] :]
    weight.copy_(narrow * weight.std() / narrow.std())


PAIRS = {
    pair.name: pair
    for pair in (
        Pair(name="dense", shape=TargetShape(), target_layer_ids=(1, 4, 7)),
        Pair(
            name="hybrid",
            shape=HybridShape(),
            target_layer_ids=(1, 3, 5),
            embedding_from="dense",
        ),
    )
}


def add_pair(parser: argparse.ArgumentParser) -> None:
    """`--pair NAME`, for every program that works on one."""
    parser.add_argument("--pair", type=_pair, default="dense", metavar="|".join(PAIRS))


def _pair(name: str) -> Pair:
    if name not in PAIRS:
        raise argparse.ArgumentTypeError(f"{name!r} is no demo pair; there are {', '.join(PAIRS)}")
    return PAIRS[name]
