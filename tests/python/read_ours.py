#!/usr/bin/env python3
"""read_ours.py WRITER: files that the library wrote, read by Python's own tools of their formats.

WRITER is the program of write_ours.cpp. numpy reads .npy and .npz; the safetensors package reads its format where it can
be imported, and a reader of twenty lines does in any case; event files are read by hand, after the protocol buffers'
definitions in TensorFlow (event.proto, summary.proto), their checksums computed here.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy")
    sys.exit(0)

ROWS = np.arange(12).reshape(3, 4)
DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "bool": "?", "c64": "c8",
          "c128": "c16"}


def expected_arrays():
    arrays = {name: (ROWS - 5).astype(dtype) for name, dtype in DTYPES.items()}
    arrays["u8"] = (ROWS * 20).astype("u1")
    arrays["scalar"] = np.array(2.5)
    arrays["empty"] = np.zeros((2, 0, 3), "f4")
    arrays["columns"] = ROWS.astype("f4").T
    arrays["folder/name"] = np.array([1.5, -2.5])
    return arrays


def same(name, found, wanted):
    assert found.dtype == wanted.dtype, f"{name}: {found.dtype}, not {wanted.dtype}"
    assert found.shape == wanted.shape, f"{name}: {found.shape}, not {wanted.shape}"
    assert np.array_equal(found, wanted), f"{name}: {found}"


def numpy_files(folder):
    wanted = expected_arrays()
    with np.load(folder / "arrays.npz", allow_pickle=False) as file:
        assert sorted(file.files) == sorted(wanted), file.files
        for name, array in wanted.items():
            same(f"arrays.npz: {name}", file[name], array)
    for name, array in wanted.items():
        if "/" not in name:
            same(f"{name}.npy", np.load(folder / f"{name}.npy", allow_pickle=False), array)


def read_safetensors(path):
    """{name: (dtype's name, shape, bytes)}, metadata"""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size].decode("utf-8"))
    metadata = header.pop("__metadata__", {})
    body, at, tensors = data[8 + size:], 0, {}
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = info["data_offsets"]
        assert begin == at, f"{name} begins at {begin}, not at {at}"
        tensors[name], at = (info["dtype"], tuple(info["shape"]), body[begin:end]), end
    assert at == len(body), "bytes are left over"
    return tensors, metadata


def safetensors_files(folder):
    wanted = {k: v for k, v in expected_arrays().items() if k not in ("c64", "c128")}
    wanted['a "name" with ünïcode/and.dots'] = np.array([1, 2, 3])
    names = {"f4": "F32", "f8": "F64", "f2": "F16", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "b1": "BOOL", "u1": "U8"}
    tensors, metadata = read_safetensors(folder / "ours.safetensors")
    assert metadata == {"made": "by Tutti", "text": 'line\n"two" ü'}, metadata
    dtype, shape, data = tensors.pop("bf16")
    halves = ((ROWS - 5).astype("f4").view("u4") >> 16).astype("u2")  # exact: these have few digits
    assert (dtype, shape, data) == ("BF16", (3, 4), halves.tobytes())
    assert sorted(tensors) == sorted(wanted)
    for name, array in wanted.items():
        dtype, shape, data = tensors[name]
        assert dtype == names[array.dtype.str[1:]], f"{name}: {dtype}"
        same(f"ours.safetensors: {name}", np.frombuffer(data, array.dtype).reshape(shape), array)

    tensors, metadata = read_safetensors(folder / "run.ckpt")
    assert sorted(tensors) == ["model/bias", "model/weight"], sorted(tensors)
    assert tensors["model/weight"] == ("F32", (3, 2), np.full(6, 0.5, "f4").tobytes())
    assert json.loads(metadata["tutti.state"])["state"]["step"] == 7

    try:
        from safetensors import safe_open
    except ImportError:
        print("the safetensors package cannot be imported here: its files were read by hand only")
        return
    with safe_open(folder / "ours.safetensors", "np") as file:
        for name, array in wanted.items():
            same(f"safetensors: {name}", file.get_tensor(name), array)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (length, check), payload = struct.unpack_from("<QI", data), data[12:]
        assert check == masked(data[:8]), "the checksum of a length"
        (check,) = struct.unpack_from("<I", payload, length)
        assert check == masked(payload[:length]), "the checksum of a record"
        yield payload[:length]
        data = payload[length + 4:]


def varint(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def message(data):
    """{field: [values]}: integers, or bytes."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(key & 7)
            if length is None:
                assert key & 7 == 2, f"wire type {key & 7}"
                length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def doubles(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def pixels(png):
    """Height, width, channels and the bytes of a PNG without filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        (length,), kind = struct.unpack_from(">I", png, at), png[at + 4:at + 8]
        chunks[kind] = png[at + 8:at + 8 + length]
        (check,) = struct.unpack_from(">I", png, at + 8 + length)
        assert check == zlib.crc32(kind + chunks[kind])
        at += 12 + length
    width, height, bits, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert bits == 8
    channels = {0: 1, 2: 3}[colour]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "u1").reshape(height, 1 + width * channels)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, channels)


def event_files(folder):
    (path,) = (folder / "events").glob("events.out.tfevents.*")
    events = [message(r) for r in records(path.read_bytes())]
    assert events[0][3] == [b"brain.Event:2"]
    for event in events:
        assert doubles(event[1][0])[0] > 1.6e9  # wall_time
    found = []
    for event in events[1:]:
        (summary,) = event[5]
        (value,) = message(summary)[1]
        found.append((event[2][0], message(value)))
    assert [(step, v[1][0].decode()) for step, v in found] == [
        (7, "loss/ü"), (1 << 40, "late"), (1, "notes"), (2, "weights"), (3, "grey"), (4, "colour")]
    values = [v for _, v in found]
    assert [struct.unpack("<f", v[2][0])[0] for v in values[:2]] == [0.25, -1.5]
    tensor = message(values[2][8][0])  # TensorProto: 1 dtype (7: string), 2 shape, 8 string_val
    assert tensor[1] == [7] and tensor[8] == ["**hello** ü".encode()]
    assert message(message(tensor[2][0])[2][0])[1] == [1]
    plugin = message(message(values[2][9][0])[1][0])
    assert plugin[1] == [b"text"]
    histogram = message(values[3][5][0])
    assert [doubles(histogram[i][0])[0] for i in range(1, 6)] == [0, 4, 5, 10, 30]
    assert doubles(histogram[6][0]) == [1, 2, 3, 4] and doubles(histogram[7][0]) == [1, 1, 1, 2]
    grey, colour = message(values[4][4][0]), message(values[5][4][0])
    assert (grey[1], grey[2], grey[3]) == ([2], [3], [1]) and (colour[1], colour[2], colour[3]) == ([2], [2], [3])
    assert pixels(grey[4][0])[:, :, 0].tolist() == [[0, 128, 255], [255, 0, 64]]
    assert np.array_equal(pixels(colour[4][0]), np.arange(12).reshape(3, 2, 2).transpose(1, 2, 0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.argv[1], name], check=True)
        for read in (numpy_files, safetensors_files, event_files):
            read(pathlib.Path(name))
            print(f"{read.__name__}: read")
