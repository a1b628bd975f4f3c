"""The delta rule: a step by hand, rows in parallel against the steps, and every prefix of them."""

import math

import pytest
import torch
from torch import Tensor

from engines.dflash2.deltanet import (
    CHUNK_ROWS,
    DeltaState,
    causal_convolution,
    fold,
    run_chunk,
    run_rows,
    run_step,
    unit,
)


def inputs(num_rows: int, seed: int = 0, batch_size: int = 2) -> list[Tensor]:
    """q, k, v, beta, g of three heads, keys of 5 and values of 4, in float64."""
    noise = torch.Generator().manual_seed(seed)
    shape = (batch_size, 3, num_rows)
    q, k = (torch.randn(*shape, 5, generator=noise, dtype=torch.float64) for _ in range(2))
    v = torch.randn(*shape, 4, generator=noise, dtype=torch.float64)
    beta, rate = (torch.rand(shape, generator=noise, dtype=torch.float64) for _ in range(2))
    return [q, unit(k), v, beta, -3 * rate]


def some_state(seed: int = 1, batch_size: int = 2) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, 3, 5, 4, generator=noise, dtype=torch.float64)


def step_by_step(rows: list[Tensor], S: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The definition: outputs, and the state before the first row and after each."""
    outputs, states = [], [S.clone()]
    for t in range(rows[0].shape[2]):
        outputs.append(run_step(*(x[:, :, t : t + 1] for x in rows), S))
        states.append(S.clone())
    return torch.cat(outputs, 2), states


def test_a_step_decays_then_corrects_what_the_state_answers_to_the_key() -> None:
    # Key (1, 0), decay 1/2: the state answers 4 / 2 = 2 where 10 is wanted; half of the error, 4,
    # is added under that key. The query (1, 1) reads both keys: 6 + 8 / 2.
    S = torch.tensor([[[[4.0], [8.0]]]])
    q, k, v = (torch.tensor(x).view(1, 1, 1, -1) for x in ([1.0, 1.0], [1.0, 0.0], [10.0]))
    beta, g = torch.tensor([[[0.5]]]), torch.tensor([[[math.log(0.5)]]])
    assert run_step(q, k, v, beta, g, S).item() == pytest.approx(10)
    assert S.flatten().tolist() == pytest.approx([6, 4])


@pytest.mark.parametrize("num_rows", [2, 3, 8, 63, 64])
def test_rows_in_parallel_give_what_the_steps_give_and_leave_the_state(num_rows: int) -> None:
    rows, S = inputs(num_rows), some_state()
    expected, _ = step_by_step(rows, S.clone())
    outputs, _ = run_chunk(*rows, S)
    torch.testing.assert_close(outputs, expected)
    assert torch.equal(S, some_state())


def test_the_state_after_any_prefix_of_a_chunk_is_that_of_the_steps() -> None:
    rows = inputs(8)
    _, states = step_by_step(rows, some_state())
    for num_kept, expected in enumerate(states):
        S = some_state()
        _, chunk = run_chunk(*rows, S)
        fold(chunk, S, torch.tensor([num_kept, num_kept]))
        torch.testing.assert_close(S, expected)


def test_sequences_of_a_batch_keep_prefixes_of_their_own() -> None:
    rows, S = inputs(8), some_state()
    _, states = step_by_step(rows, some_state())
    _, chunk = run_chunk(*rows, S)
    fold(chunk, S, torch.tensor([2, 7]))
    torch.testing.assert_close(S, torch.stack((states[2][0], states[7][1])))


@pytest.mark.parametrize("num_rows", [1, 2, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS, 150])
def test_any_number_of_rows_gives_what_the_steps_give(num_rows: int) -> None:
    rows, S = inputs(num_rows), some_state()
    expected, states = step_by_step(rows, S.clone())
    outputs, chunk = run_rows(*rows, S)
    torch.testing.assert_close(outputs, expected)
    if chunk is not None:
        assert 2 <= num_rows <= CHUNK_ROWS
        fold(chunk, S, torch.tensor([num_rows, num_rows]))
    torch.testing.assert_close(S, states[-1])


def test_a_decay_to_nothing_inside_a_chunk_gives_no_nan() -> None:
    q, k, v, beta, g = (x.float() for x in inputs(64))
    g = g * 200  # e to the minus thousands: its inverse is infinite
    outputs, chunk = run_chunk(q, k, v, beta, g, some_state().float())
    S = some_state().float()
    fold(chunk, S, torch.tensor([10, 64]))
    assert outputs.isfinite().all()
    assert S.isfinite().all()


def test_the_convolutions_last_tap_is_the_row_itself() -> None:
    rows = torch.tensor([1.0, 2, 3, 4]).view(1, 4, 1)
    weight = torch.tensor([[100.0, 10, 1]])
    assert causal_convolution(rows, weight).flatten().tolist() == [123, 234]


def test_unit_keeps_direction_and_survives_a_row_of_zeros() -> None:
    assert unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).flatten().tolist() == pytest.approx(
        [0.6, 0.8, 0, 0]
    )


@pytest.fixture
def state() -> DeltaState:
    return DeltaState(
        S=torch.zeros(1, 3, 5, 4, dtype=torch.float64),
        convolved=torch.zeros(1, 3, 2, dtype=torch.float64),
    )


def run_pass(state: DeltaState, rows: list[Tensor], numbers: list[float]) -> None:
    """A layer's pass over rows; what its convolution sees are plain numbers."""
    convolved = state.extend(torch.tensor(numbers).double().view(1, -1, 1).expand(1, -1, 2))
    _, chunk = run_rows(*rows, state.S)
    state.finish(convolved, chunk)


def pieces(rows: list[Tensor], start: int, end: int) -> list[Tensor]:
    return [x[:, :, start:end] for x in rows]


@pytest.mark.parametrize("num_kept", range(9))
def test_rows_taken_back_never_happened(state: DeltaState, num_kept: int) -> None:
    rows = inputs(12, batch_size=1)
    run_pass(state, pieces(rows, 0, 4), [0, 1, 2, 3])
    state.keep([4])
    run_pass(state, pieces(rows, 4, 12), list(range(4, 12)))
    assert state.num_pending == 8
    state.keep([num_kept])
    _, states = step_by_step(rows, torch.zeros(1, 3, 5, 4, dtype=torch.float64))
    torch.testing.assert_close(state.S, states[4 + num_kept])
    last = [1 + num_kept, 2 + num_kept, 3 + num_kept]
    assert state.convolved[0, :, 0].tolist() == last
    assert state.num_pending == 0


def test_single_rows_follow_a_block_in_the_state_at_once(state: DeltaState) -> None:
    rows = inputs(10, batch_size=1)
    run_pass(state, pieces(rows, 0, 8), list(range(8)))
    state.keep([8])
    for number in (8, 9):
        run_pass(state, pieces(rows, number, number + 1), [number])
        assert state.num_pending == 0
    _, states = step_by_step(rows, torch.zeros(1, 3, 5, 4, dtype=torch.float64))
    torch.testing.assert_close(state.S, states[10])
    assert state.convolved[0, :, 0].tolist() == [7, 8, 9]


def test_each_sequence_of_a_batch_keeps_as_many_rows_as_it_is_told() -> None:
    state = DeltaState(
        S=torch.zeros(3, 3, 5, 4, dtype=torch.float64),
        convolved=torch.zeros(3, 3, 2, dtype=torch.float64),
    )
    rows = inputs(8, batch_size=3)
    convolved = state.extend(torch.arange(1.0, 9).double().view(1, -1, 1).expand(3, -1, 2))
    _, chunk = run_rows(*rows, state.S)
    state.finish(convolved, chunk)
    state.keep([8, 0, 2])
    _, states = step_by_step(rows, torch.zeros(3, 3, 5, 4, dtype=torch.float64))
    for sequence, num_kept in enumerate((8, 0, 2)):
        torch.testing.assert_close(state.S[sequence], states[num_kept][sequence])
    assert state.convolved[:, :, 0].tolist() == [[6, 7, 8], [0, 0, 0], [0, 1, 2]]


def test_a_reset_state_remembers_nothing_and_its_neighbours_everything() -> None:
    state = DeltaState(S=torch.ones(2, 3, 5, 4), convolved=torch.ones(2, 3, 2))
    state.reset(0)
    assert not state.S[0].any()
    assert not state.convolved[0].any()
    assert state.S[1].all()
    state.move(1, 0)
    assert state.S[0].all()
    assert state.convolved[0].all()
