"""The converter once more, written from the rule book alone: one number at a time, no NumPy.

Python computes in double; rounding each single result to float32 gives exactly what float32
arithmetic gives, because a double has more than twice its digits. Shares no code with the engine.
"""

import json
import math
from ctypes import c_float
from struct import pack, unpack

CODEBOOKS = {
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
}


def f32(x: float) -> float:
    return c_float(x).value


def from_bf16(word: int) -> float:
    return unpack("<f", pack("<I", word << 16))[0]


def to_bf16(x: float) -> int:
    """Round to nearest, ties to even, on the bits."""
    bits = unpack("<I", pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def nearest(x: float) -> float:
    if math.isinf(x):
        return x
    return math.copysign(math.floor(f32(abs(x) + 0.5)), x)


def quantize_group(words: list[int]) -> tuple[int, int, list[int]]:
    """Scale bits, bias bits and codes of 64 BF16 words; the steps are numbered as in the rules."""
    values = [from_bf16(word) for word in words]
    low, high = min(values), max(values)  # 1
    low_edge = abs(low) > abs(high)
    scale = max(f32(f32(high - low) / 255), f32(1e-7))  # 2
    edge = low if low_edge else high
    if not low_edge:
        scale = -scale
    code = nearest(f32(edge / scale))  # 3
    bias = 0.0
    if code != 0:  # 4
        scale, bias = f32(edge / code), edge
    scale_bits, bias_bits = to_bf16(scale), to_bf16(bias)  # 5
    scale, bias = from_bf16(scale_bits), from_bf16(bias_bits)
    inverse = f32(1 / scale) if scale != 0 else 0.0  # 6
    codes = [nearest(f32(f32(value - bias) * inverse)) for value in values]
    return scale_bits, bias_bits, [int(min(max(code, 0), 255)) for code in codes]


def convert(source: bytes) -> bytes:
    """A whole safetensors file to a whole safetensors file."""
    header_length = int.from_bytes(source[:8], "little")
    header = json.loads(source[8 : 8 + header_length])
    data = source[8 + header_length :]
    out: list[tuple[str, str, list[int], bytes]] = []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        words = list(unpack(f"<{(end - begin) // 2}H", data[begin:end]))
        final = name + ".weight" if name in CODEBOOKS else name
        if len(entry["shape"]) != 2 or not final.endswith(".weight"):
            out.append((final, "BF16", entry["shape"], data[begin:end]))
            continue
        rows, width = entry["shape"]
        groups = [quantize_group(words[at : at + 64]) for at in range(0, len(words), 64)]
        stem = final[: -len(".weight")]
        codes = bytes(code for group in groups for code in group[2])
        out.append((final, "U32", [rows, width // 4], codes))
        for part, suffix in ((0, "scales"), (1, "biases")):
            words = [group[part] for group in groups]
            packed = pack(f"<{len(words)}H", *words)
            out.append((f"{stem}.{suffix}", "BF16", [rows, width // 64], packed))
    return assemble(out)


def assemble(tensors: list[tuple[str, str, list[int], bytes]]) -> bytes:
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return pack("<Q", len(text)) + text.encode() + b"".join(data for *_, data in tensors)
