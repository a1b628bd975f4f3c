"""`check --device`: it passes on this machine, sees a wrong kernel, and notices a fallback."""

import pytest
import torch
from torch import Tensor

from engines.dflash2 import selfcheck
from engines.dflash2.selfcheck import DeviceOnly, HostFallbackError, check_device

CPU = torch.device("cpu")


def test_every_finding_is_good_on_the_cpu() -> None:
    findings = check_device(CPU)
    assert [finding.name for finding in findings] == [
        "selection",
        "selection",
        "selector",
        "attention",
        "attention",
    ]
    assert all(finding.ok for finding in findings), findings
    assert "1792 scores" in findings[2].text
    assert "context 2055" in findings[4].text


def test_a_kernel_that_rounds_to_bfloat16_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("attention", "edge_scores"):
        right = getattr(selfcheck, name)

        def wrong(*inputs: Tensor, right=right) -> Tensor:
            return right(*(x.bfloat16() for x in inputs)).float()

        monkeypatch.setattr(selfcheck, name, wrong)
    assert [finding.ok for finding in check_device(CPU)] == [True, True, False, False, False]


def test_a_search_that_prefers_the_larger_index_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best, indices = scores.flip(-1).sort(descending=True, stable=True)
        return best[:, :k], scores.shape[-1] - 1 - indices[:, :k]

    monkeypatch.setattr(selfcheck, "top_candidates", wrong)
    monkeypatch.setattr(selfcheck, "chunked_top_candidates", wrong)
    assert [finding.ok for finding in check_device(CPU)[:2]] == [False, False]


def test_an_operation_on_another_device_is_an_error_that_names_it() -> None:
    elsewhere = torch.device("meta")
    x, y = torch.ones(3, device=elsewhere), torch.ones(3)
    with DeviceOnly(elsewhere):
        assert (x + 1).device.type == "meta"
        with pytest.raises(HostFallbackError, match=r"aten\.mul\.Tensor ran on cpu, but meta was"):
            y * 2


def test_integers_and_transfers_are_no_fallback() -> None:
    elsewhere = torch.device("meta")
    with DeviceOnly(elsewhere):
        torch.arange(3) + 1
        assert torch.ones(3, device=elsewhere).sum().device.type == "meta"
    moved = torch.ones(3)
    with DeviceOnly(elsewhere):
        assert moved.to(elsewhere).device.type == "meta"
