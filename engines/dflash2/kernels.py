"""The C library behind float32 on a CPU: compiled on first use, kept on disk, called on tensors.

PyTorch's own products of few rows read a matrix at a third of the memory's speed here, and its many
small operations cost more than what they compute. Every function below stands beside the plain one
that says what it means (`layers`, `attention`); `suits` tells when it may be used instead. Knows
arrays, no models.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes import c_float, c_int, c_long, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SWITCH = "DFLASH2_KERNELS"  # 0: everything by PyTorch
CACHE_DIR = "DFLASH2_CACHE_DIR"
SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-fopenmp")
LANES = 16  # as in the source: sizes that are summed over are multiples of it

num_compiled = 0  # by this process


class _Heads(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("batch", c_long), ("head", c_long), ("row", c_long))


SIGNATURES = {
    "product": (c_void_p, c_void_p, c_long, c_long, c_int, c_void_p, c_void_p, c_int),
    "rms_norm": (c_void_p, c_void_p, c_float, c_float, c_void_p, c_long, c_long, c_int),
    "turn_heads": (
        *(c_void_p, c_long, c_void_p, c_float, c_float),
        *(c_void_p, c_void_p, c_long, c_long, c_void_p, c_long, c_long, c_long, c_int),
    ),
    "swiglu": (c_void_p, c_void_p, c_long, c_long, c_int),
    "attend": (
        *(_Heads, _Heads, _Heads, c_void_p, c_long, c_long, c_int, c_void_p),
        *(c_long, c_long, c_long, c_long, c_long, c_long, c_int),
    ),
}


def suits(x: Tensor, *weights: Tensor) -> bool:
    """Whether the library computes this: float32 on a CPU, in pieces it can sum, no gradients."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.shape[-1] % LANES == 0
        and library() is not None
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights)))
        and all(w.dtype == torch.float32 and w.is_contiguous() for w in weights)
    )


def product(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """x: [..., k] by matrices [widths[i], k], side by side -> [..., sum of widths]."""
    x = x.contiguous()
    widths = [len(weight) for weight in weights]
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
    if x.stride(0) != length * x.stride(1) or x.stride()[2:] != (size, 1):
        x = x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _library().turn_heads(
        x.data_ptr(),
        x.stride(1),
        None if weight is None else weight.data_ptr(),
        offset,
        eps,
        cos.data_ptr(),
        sin.data_ptr(),
        cos.numel() // cos.shape[-1],
        cos.shape[-1],
        y.data_ptr(),
        batch * length,
        num_heads,
        size,
        torch.get_num_threads(),
    )
    return y.transpose(1, 2)


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


def can_attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> bool:
    tensors = (queries, keys, values)
    return all(suits(x) and x.stride(-1) == 1 for x in tensors) and (
        mask is None or mask.stride(-1) == 1
    )


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """See `attention.attention`; as there, no mask means causal where there are several rows."""
    batch, num_heads, num_rows, size = queries.shape
    num_key_value_heads, num_keys = keys.shape[1], keys.shape[2]
    y = queries.new_empty(batch, num_rows, num_heads, size)
    if mask is not None:
        mask = mask.expand(batch, 1, num_rows, num_keys)
    _library().attend(
        _heads(queries),
        _heads(keys),
        _heads(values),
        None if mask is None else mask.data_ptr(),
        0 if mask is None else mask.stride(0),
        0 if mask is None else mask.stride(2),
        mask is None and num_rows > 1,
        y.data_ptr(),
        batch,
        num_heads,
        num_key_value_heads,
        num_rows,
        num_keys,
        size,
        torch.get_num_threads(),
    )
    return y.transpose(1, 2)


def _heads(x: Tensor) -> _Heads:
    batch, head, row, _ = x.stride()
    return _Heads(x.data_ptr(), batch, head, row)


def _library() -> ctypes.CDLL:
    found = library()
    assert found is not None, "ask `suits` first"
    return found


@cache
def library() -> ctypes.CDLL | None:
    """The compiled source; None where it was switched off or there is no compiler for it."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        _say("no gcc was found: float32 runs by PyTorch alone, at a third of the speed")
        return None
    path = _folder() / f"kernels-{_fingerprint(compiler)}.so"
    if not path.exists():
        _compile(compiler, path)
    found = ctypes.CDLL(str(path))
    for name, arguments in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    return found


def _fingerprint(compiler: str) -> str:
    """Of all that the result depends on: source, flags, compiler, and what `native` means here."""
    asked = (["-dumpfullversion"], [*FLAGS, "-Q", "--help=target"])
    answers = [subprocess.run([compiler, *flags], capture_output=True) for flags in asked]
    text = [SOURCE.read_bytes(), repr(FLAGS).encode(), *(answer.stdout for answer in answers)]
    return hashlib.sha256(b"\n".join(text)).hexdigest()[:16]


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(CACHE_DIR) or f"{home}/dflash2").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compile(compiler: str, path: Path) -> None:
    """Beside its place first, because several processes may start at once."""
    global num_compiled
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        object_file, result = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        subprocess.run([compiler, *FLAGS, "-c", SOURCE, "-o", object_file], check=True)
        # PyTorch's own OpenMP, so that both have the same threads and none of them waits in vain.
        runtimes = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")) or ["-lgomp"]
        subprocess.run([compiler, "-shared", object_file, *runtimes, "-o", result], check=True)
        result.replace(path)
    num_compiled += 1


def _say(text: str) -> None:
    print(f"[dflash2-kernels] {text}", file=sys.stderr, flush=True)
