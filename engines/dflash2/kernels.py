"""The C library behind float32 on a CPU: compiled on first use, kept on disk, called on tensors.

PyTorch's own products of few rows read a matrix at a third of the memory's speed here, and its many
small operations cost more than what they compute. Every function below stands beside the plain one
that says what it means (`layers`, `attention`); `suits` tells when it may be used instead. Knows
arrays, no models.
"""

import atexit
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from ctypes import c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SWITCH = "DFLASH2_KERNELS"  # 0: everything by PyTorch
CACHE_DIR = "DFLASH2_CACHE_DIR"
SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-fopenmp")
LANES = 16  # as in the source: sizes that are summed over are multiples of it

num_compiled, compile_s = 0, 0.0  # by this process; what was found on disk cost neither


class _Heads(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("batch", c_long), ("head", c_long), ("row", c_long))


class _AttentionWeights(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("norm", "q", "k", "v", "o", "q_norm", "k_norm")),
        *((name, c_float) for name in ("offset", "eps")),
        *((name, c_long) for name in ("hidden", "num_heads", "num_key_value_heads", "size")),
        ("num_turned", c_long),
        ("is_gated", c_int),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *(("cos", c_void_p), ("sin", c_void_p), ("num_angles", c_long), ("mask", c_void_p)),
        *((name, c_long) for name in ("mask_batch", "mask_row", "batch", "rows")),
    )


class _BlockWeights(ctypes.Structure):
    _fields_ = (
        ("attention", _AttentionWeights),
        *((name, c_void_p) for name in ("attention_base", "attention_kernels")),
        *((name, c_void_p) for name in ("mlp_norm", "mlp_base", "mlp_kernels")),
        *((name, c_void_p) for name in ("gate", "up", "down")),
        *((name, c_long) for name in ("intermediate", "taps", "group_size")),
    )


class _Parts(ctypes.Structure):
    _fields_ = (
        *(("context", _Heads), ("own", _Heads)),
        *(("num_context", c_long), ("num_own", c_long)),
    )


SIGNATURES = {
    "product": (*(c_void_p, c_void_p, c_long, c_long, c_int, c_void_p, c_void_p, c_void_p, c_int),),
    "rms_norm": (c_void_p, c_void_p, c_float, c_float, c_void_p, c_long, c_long, c_int),
    "turn_heads": (
        *(_Heads, c_void_p, c_float, c_float, c_void_p, c_void_p, c_long, c_long, _Heads),
        *(c_long, c_long, c_long, c_long, c_int),
    ),
    "swiglu": (c_void_p, c_void_p, c_long, c_long, c_int),
    "attend": (
        *(_Heads, _Parts, _Parts, c_void_p, c_long, c_long, c_int, _Heads),
        *(c_long, c_long, c_long, c_long, c_long, c_int),
    ),
    "convolution_kernels": (c_void_p, c_void_p, c_void_p, c_long, c_long, c_long, c_long),
    "convolve": (c_void_p, c_void_p, c_long, c_void_p, c_long, c_long, c_long, c_long),
    "top_candidates": (c_void_p, c_void_p, c_void_p, c_long, c_long, c_long, c_int),
    "add_mlp": (
        *(c_void_p, c_void_p, c_float, c_float, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_long, c_long, c_long, c_int),
    ),
    "add_attention": (
        *(_AttentionWeights, _Pass, c_void_p, _Heads, _Heads, c_void_p, c_long, c_void_p, c_int),
    ),
    "add_block": (*(_BlockWeights, _Pass, c_void_p, _Heads, _Heads, c_long, c_void_p, c_int),),
}


def computes(*tensors: Tensor | None) -> bool:
    """Whether the library can be given these: float32 on a CPU, and nobody wants gradients."""
    with_gradients = torch.is_grad_enabled()
    for x in tensors:  # a loop, because every operation of a pass asks
        if x is not None and (
            x.dtype is not torch.float32 or not x.is_cpu or (with_gradients and x.requires_grad)
        ):
            return False
    return library() is not None


def suits(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether it computes sums over the last dimension of x, with these weights."""
    return (
        x.shape[-1] % LANES == 0
        and computes(x, *weights)
        and all(weight is None or weight.is_contiguous() for weight in weights)
    )


def product(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """x: [..., k] by matrices [widths[i], k], side by side -> [..., sum of widths]."""
    x = x.contiguous()
    widths = [weight.shape[0] for weight in weights]
    y = x.new_empty(*x.shape[:-1], sum(widths))
    num_rows, num_matrices, size = y.numel() // y.shape[-1], len(weights), x.shape[-1]
    _library().product(
        x.data_ptr(),
        y.data_ptr(),
        num_rows,
        size,
        num_matrices,
        (c_void_p * num_matrices)(*[weight.data_ptr() for weight in weights]),
        (c_long * num_matrices)(*widths),
        None,
        torch.get_num_threads(),
    )
    return y


def rms_norm(x: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
    """(offset + weight) * x / rms(x) over the last dimension."""
    x = x.contiguous()
    y = torch.empty_like(x)
    size = x.shape[-1]
    _library().rms_norm(
        x.data_ptr(),
        weight.data_ptr(),
        offset,
        eps,
        y.data_ptr(),
        x.numel() // size,
        size,
        torch.get_num_threads(),
    )
    return y


def turn_heads(
    x: Tensor, weight: Tensor | None, offset: float, eps: float, cos: Tensor, sin: Tensor
) -> Tensor:
    """x: [batch, length, heads, size] -> [batch, heads, length, size], normalised and turned.

    cos, sin: of each row's position, [..., length, turned channels]; weight None: only turned.
    """
    batch, length, num_heads, size = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _library().turn_heads(
        _heads(x.transpose(1, 2)),
        None if weight is None else weight.data_ptr(),
        offset,
        eps,
        cos.data_ptr(),
        sin.data_ptr(),
        cos.numel() // cos.shape[-1],
        cos.shape[-1],
        _heads(turned := y.transpose(1, 2)),
        batch,
        num_heads,
        length,
        size,
        torch.get_num_threads(),
    )
    return turned


def are_neighbours(gate: Tensor, up: Tensor) -> bool:
    """Whether they lie side by side, row by row, as `product` makes them."""
    size = gate.shape[-1]
    return (
        up.data_ptr() == gate.data_ptr() + size * gate.element_size()
        and gate.stride() == up.stride()
        and (gate.dim() == 1 or gate.stride(-2) == 2 * size)
    )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up of neighbours."""
    y = torch.empty_like(gate, memory_format=torch.contiguous_format)
    size = gate.shape[-1]
    num_rows = gate.numel() // size
    _library().swiglu(gate.data_ptr(), y.data_ptr(), num_rows, size, torch.get_num_threads())
    return y


def can_attend(mask: Tensor | None, *heads: Tensor) -> bool:
    return all(suits(x) and x.stride(-1) == 1 for x in heads) and (
        mask is None or mask.stride(-1) == 1
    )


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    context: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See `attention.attention`; as there, no mask means causal where there are several rows."""
    batch, num_heads, num_rows, size = queries.shape
    context_keys, context_values = context or (keys[:, :, :0], values[:, :, :0])
    num_keys = context_keys.shape[2] + keys.shape[2]
    y = queries.new_empty(batch, num_rows, num_heads, size).transpose(1, 2)
    _library().attend(
        _heads(queries),
        _parts(context_keys, keys),
        _parts(context_values, values),
        *_mask(mask, batch, num_rows, num_keys),
        mask is None and num_rows > 1,
        _heads(y),
        batch,
        num_heads,
        keys.shape[1],
        num_rows,
        size,
        torch.get_num_threads(),
    )
    return y


def convolution_kernels(base: Tensor, correction: Tensor) -> Tensor:
    """base: [side, tap, hidden]; correction: [..., side * tap * group] -> base + correction.

    [..., side, tap, hidden], of a channel the correction of its group.
    """
    sides, taps, hidden = base.shape
    num_groups = correction.shape[-1] // (sides * taps)
    y = correction.new_empty(*correction.shape[:-1], *base.shape)
    num_rows = correction.numel() // correction.shape[-1]
    _library().convolution_kernels(
        base.data_ptr(),
        correction.data_ptr(),
        y.data_ptr(),
        num_rows,
        sides * taps,
        num_groups,
        hidden // num_groups,
    )
    return y


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """See `layers.convolve`."""
    batch, length, taps, size = kernel.shape
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    if kernel.stride() != (length * kernel.stride(1), kernel.stride(1), size, 1):
        kernel = kernel.contiguous()
    _library().convolve(
        x.data_ptr(),
        kernel.data_ptr(),
        kernel.stride(1),
        y.data_ptr(),
        batch,
        length,
        taps,
        size,
    )
    return y


def top_candidates(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `top_k.top_candidates`."""
    scores = scores.contiguous()
    num_rows, num_scores = scores.shape
    best = scores.new_empty(num_rows, k)
    indices = torch.empty(num_rows, k, dtype=torch.int64)
    _library().top_candidates(
        scores.data_ptr(),
        best.data_ptr(),
        indices.data_ptr(),
        num_rows,
        num_scores,
        k,
        torch.get_num_threads(),
    )
    return best, indices


def add_mlp(
    x: Tensor, norm: Tensor, offset: float, eps: float, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """x + down(silu(gate(h)) * up(h)), where h is x normalised; x: [..., hidden], contiguous."""
    y = torch.empty_like(x)
    _library().add_mlp(
        x.data_ptr(),
        norm.data_ptr(),
        offset,
        eps,
        gate.data_ptr(),
        up.data_ptr(),
        down.data_ptr(),
        y.data_ptr(),
        x.numel() // x.shape[-1],
        x.shape[-1],
        gate.shape[0],
        torch.get_num_threads(),
    )
    return y


def add_attention(
    x: Tensor,
    weights: tuple[Tensor | None, ...],
    rotation: tuple[Tensor, Tensor],
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    num_keys: int,
    *,
    offset: float,
    eps: float,
    is_gated: bool,
) -> Tensor:
    """x + the layer's attention to its memory, into which the new rows are written first.

    x: [batch, length, hidden], contiguous; weights: norm, q, k, v, o, norms of q and k; keys,
    values: [batch, key-value heads, any, head_dim], all of a cache's rows, of which the first
    `num_keys` are looked at; positions: [batch, length].
    """
    y = torch.empty_like(x)
    _library().add_attention(
        _attention_weights(weights, keys, rotation, offset, eps, is_gated),
        _pass(x, rotation, mask, num_keys),
        x.data_ptr(),
        _heads(keys),
        _heads(values),
        positions.data_ptr(),
        num_keys,
        y.data_ptr(),
        torch.get_num_threads(),
    )
    return y


def add_block(
    x: Tensor,
    attention: tuple[Tensor | None, ...],
    rest: tuple[Tensor, ...],
    rotation: tuple[Tensor, Tensor],
    mask: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    eps: float,
) -> Tensor:
    """A layer of the drafter. x: [batch, block, hidden], contiguous; keys, values: the context's.

    attention: as for `add_attention`; rest: base and projection of the convolutions around it, the
    norm before the MLP, base and projection around that, and the MLP's three matrices.
    """
    _, length, hidden = x.shape
    base, projection, gate = rest[0], rest[1], rest[5]
    sides, taps, _ = base.shape
    own = _BlockWeights(
        _attention_weights(attention, keys, rotation, 0.0, eps, is_gated=False),
        *(weight.data_ptr() for weight in rest),
        gate.shape[0],
        taps,
        hidden * sides * taps // projection.shape[0],
    )
    y = torch.empty_like(x)
    _library().add_block(
        own,
        _pass(x, rotation, mask, keys.shape[2] + length),
        x.data_ptr(),
        _heads(keys),
        _heads(values),
        keys.shape[2],
        y.data_ptr(),
        torch.get_num_threads(),
    )
    return y


def _attention_weights(
    weights: tuple[Tensor | None, ...],
    keys: Tensor,
    rotation: tuple[Tensor, Tensor],
    offset: float,
    eps: float,
    is_gated: bool,
) -> _AttentionWeights:
    hidden, width = weights[4].shape  # of the way back
    head_dim = keys.shape[3]
    return _AttentionWeights(
        *(None if weight is None else weight.data_ptr() for weight in weights),
        offset,
        eps,
        hidden,
        width // head_dim,
        keys.shape[1],
        head_dim,
        rotation[0].shape[-1],
        is_gated,
    )


def _pass(x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, num_keys: int) -> _Pass:
    batch, length, _ = x.shape
    cos, sin = rotation
    return _Pass(
        cos.data_ptr(),
        sin.data_ptr(),
        cos.numel() // cos.shape[-1],
        *_mask(mask, batch, length, num_keys),
        batch,
        length,
    )


def _mask(
    mask: Tensor | None, batch: int, num_rows: int, num_keys: int
) -> tuple[int | None, int, int]:
    """Where it is, and its strides from sequence to sequence and from row to row."""
    if mask is None:
        return None, 0, 0
    mask = mask.expand(batch, 1, num_rows, num_keys)
    return mask.data_ptr(), mask.stride(0), mask.stride(2)


def _heads(x: Tensor) -> _Heads:
    batch, head, row, _ = x.stride()
    return _Heads(x.data_ptr(), batch, head, row)


def _parts(context: Tensor, own: Tensor) -> _Parts:
    return _Parts(_heads(context), _heads(own), context.shape[2], own.shape[2])


def _library() -> ctypes.CDLL:
    found = library()
    assert found is not None, "ask `suits` first"
    return found


@dataclass(frozen=True, kw_only=True)
class _Found:
    library: ctypes.CDLL | None
    description: str


def library() -> ctypes.CDLL | None:
    """The compiled source; None where PyTorch does everything."""
    return _found().library


def description() -> str:
    """What computes float32 on this CPU: "c (...)", or "torch (...)" and why."""
    return _found().description


@cache
def _found() -> _Found:
    if os.environ.get(SWITCH, "1") == "0":
        return _Found(library=None, description=f"torch ({SWITCH}=0)")
    name = os.environ.get("CC", "gcc")
    compiler = shutil.which(name)
    if compiler is None:
        return _without(f"no {name} was found")
    try:
        path = _compiled(compiler)
    except subprocess.CalledProcessError as error:
        return _without(f"{name} cannot compile {SOURCE.name}: {error.stderr.decode()[:300]}")
    opened = ctypes.CDLL(str(path))
    for function, arguments in SIGNATURES.items():
        getattr(opened, function).argtypes = arguments
        getattr(opened, function).restype = None
    version = _output(compiler, "-dumpfullversion").decode().strip()
    return _Found(library=opened, description=f"c ({name} {version} {' '.join(FLAGS)})")


def _without(reason: str) -> _Found:
    _say(f"{reason}: float32 runs by PyTorch alone, at a third of the speed; it needs gcc (CC)")
    return _Found(library=None, description=f"torch ({reason.splitlines()[0]})")


def _compiled(compiler: str) -> Path:
    """From disk, or made now."""
    path = _folder() / f"kernels-{_fingerprint(compiler)}.so"
    if not path.exists():
        _compile(compiler, path)
    return path


def _fingerprint(compiler: str) -> str:
    """Of all that the result depends on: source, flags, compiler, and what `native` means here."""
    version = _output(compiler, "-dumpfullversion")
    native = _output(compiler, *FLAGS, "-Q", "--help=target")
    text = [SOURCE.read_bytes(), repr(FLAGS).encode(), version, native]
    return hashlib.sha256(b"\n".join(text)).hexdigest()[:16]


def _output(*command: str) -> bytes:
    return subprocess.run(command, capture_output=True).stdout


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(CACHE_DIR) or f"{home}/dflash2").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="dflash2-kernels-"))
        atexit.register(shutil.rmtree, other, ignore_errors=True)
        _say(f"{folder} cannot be written ({error.strerror}); compiling into {other}")
        return other


def _compile(compiler: str, path: Path) -> None:
    """Beside its place first, because several processes may start at once."""
    global num_compiled, compile_s
    started_at_s = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        object_file, result = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        # PyTorch's own OpenMP, so that both have the same threads and none of them waits in vain.
        runtimes = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")) or ["-lgomp"]
        for command in (
            [compiler, *FLAGS, "-c", SOURCE, "-o", object_file],
            [compiler, "-shared", object_file, *runtimes, "-lm", "-o", result],
        ):
            subprocess.run(command, check=True, capture_output=True)
        result.replace(path)
    num_compiled += 1
    compile_s += time.perf_counter() - started_at_s


def _say(text: str) -> None:
    print(f"[dflash2-kernels] {text}", file=sys.stderr, flush=True)
