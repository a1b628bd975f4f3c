"""What each engine speaks: one small file per engine and one row here. No sockets, no processes."""

from collections.abc import Mapping

from harness.adapters.base import Adapter, OutputPiece
from harness.adapters.dflash2 import DFLASH2
from harness.adapters.openai import OPENAI

ADAPTERS: Mapping[str, Adapter] = {"dflash2": DFLASH2, "openai": OPENAI}

__all__ = ["ADAPTERS", "Adapter", "OutputPiece"]
