"""Fixtures of the serving tests; what they are made of is in support.py."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from engines.dflash2.tokenizer import Tokenizer, load_tokenizer

from .support import KV_LEN, Pair, Served, serving, write_drafter, write_target


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    pair = Pair(target=folder / "target", drafter=folder / "drafter")
    write_target(pair.target)
    write_drafter(pair.drafter)
    return pair


@pytest.fixture(scope="session")
def tokenizer(pair: Pair) -> Tokenizer:
    return load_tokenizer(pair.target)


@pytest.fixture(scope="session")
def served(pair: Pair) -> Iterator[Served]:
    """The real process with the drafter on, shared by all tests: count differences, not totals."""
    options = ["--dflash2", "on", "--dflash2-model", str(pair.drafter), "--kv-len", str(KV_LEN)]
    with serving(pair, *options) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=30, trust_env=False) as client:
        yield client
