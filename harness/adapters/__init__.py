"""What each engine speaks: one small file per engine and one row here. No sockets, no processes."""

from collections.abc import Mapping

from harness.adapters.base import Adapter, OutputPiece
from harness.adapters.dflash2 import DFLASH2
from harness.adapters.llamacpp import LLAMACPP
from harness.adapters.openai import OPENAI
from harness.adapters.sglang import SGLANG
from harness.adapters.vllm import VLLM

ADAPTERS: Mapping[str, Adapter] = {
    adapter.name: adapter for adapter in (DFLASH2, LLAMACPP, OPENAI, SGLANG, VLLM)
}

__all__ = ["ADAPTERS", "Adapter", "OutputPiece"]
