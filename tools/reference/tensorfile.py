"""Reads and writes safetensors files with numpy (github.com/huggingface/safetensors, README, "Format")."""
import json
import os
import struct

import numpy as np

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4, "I64": 8, "U8": 1}


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """Round to nearest even; x is finite."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3_table():
    """The 256 values of OCP FP8 E4M3FN."""
    v = np.zeros(256, np.float32)
    for code in range(256):
        e, m = (code >> 3) & 15, code & 7
        if e == 15 and m == 7:
            x = np.nan
        elif e == 0:
            x = m * 2.0**-9
        else:
            x = (8 + m) * 2.0 ** (e - 10)
        v[code] = -x if code & 0x80 else x
    return v


E4M3 = e4m3_table()


def f32_to_e4m3(x):
    """The nearest value, ties to the even code, saturating at +-448."""
    positive = E4M3[:127].astype(np.float64)
    a = np.minimum(np.abs(np.asarray(x, np.float64)), 448.0)
    high = np.searchsorted(positive, a).clip(0, 126)
    low = np.maximum(high - 1, 0)
    up, down = positive[high] - a, a - positive[low]
    code = np.where((up < down) | ((up == down) & (high % 2 == 0)), high, low)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def read(path):
    """name -> (dtype, array); BF16 and F8_E4M3 as their bits."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    types = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16, "F8_E4M3": np.uint8, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(data[a:b], types[t["dtype"]]).reshape(t["shape"]))
    return out


def write(path, tensors, metadata=None):
    """tensors: name -> (dtype, array with the bits)."""
    header = {"__metadata__": metadata} if metadata else {}
    order = sorted(tensors, key=lambda n: (-SIZES[tensors[n][0]], n))
    offset = 0
    for name in order:
        dtype, x = tensors[name]
        assert x.itemsize == SIZES[dtype], name
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name][1]).tobytes())


def read_checkpoint(folder):
    """All shards of a checkpoint."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read(os.path.join(folder, "model.safetensors"))
    with open(index) as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    out = {}
    for name in files:
        out.update(read(os.path.join(folder, name)))
    return out


def as_values(tensors, dtype=np.float64):
    """Widens every tensor; block FP8 is multiplied by its scales, which are then left out."""
    out = {}
    for name, (kind, x) in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if kind == "BF16":
            v = bf16_to_f32(x)
        elif kind == "F8_E4M3":
            scale = tensors[name + "_scale_inv"][1]
            n, k = x.shape
            v = E4M3[x] * np.repeat(np.repeat(scale, 128, 0)[:n], 128, 1)[:, :k]
        else:
            v = x
        out[name] = v.astype(dtype)
    return out
