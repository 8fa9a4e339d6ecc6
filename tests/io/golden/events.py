#!/usr/bin/env python3
"""Makes events.reference beside this file: what the EventWriter must write, byte for byte, by an encoder of its own.

It follows TensorFlow's event.proto, summary.proto, tensor.proto and the record format (length, masked CRC-32C of the
length, bytes, masked CRC-32C of the bytes), and shares no code with the library. tests/io/events_test.cpp adds the same
things with the same clock. Run: python3 tests/io/golden/events.py
"""

import pathlib
import struct

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
    TABLE.append(n)


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def varint(value):
    value &= (1 << 64) - 1  # a negative int64 takes ten bytes
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def integer(field, value):
    return varint(field << 3) + varint(value)


def double(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def single(field, value):
    return varint(field << 3 | 5) + struct.pack("<f", value)


def block(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed(field, values):
    return block(field, b"".join(struct.pack("<d", v) for v in values))


clock = 1700000000.0


def wall_time():
    global clock
    clock += 0.25
    return double(1, clock)


def summary(tag, step, value):
    return wall_time() + integer(2, step) + block(5, block(1, block(1, tag.encode()) + value))


def text(string):
    shape = block(2, integer(1, 1))
    tensor = integer(1, 7) + block(2, shape) + block(8, string.encode())
    return block(8, tensor) + block(9, block(1, block(1, b"text")))


def histogram(low, high, count, total, squares, limits, buckets):
    numbers = b"".join(double(i + 1, v) for i, v in enumerate([low, high, count, total, squares]))
    return block(5, numbers + packed(6, limits) + packed(7, buckets))


if __name__ == "__main__":
    events = [
        wall_time() + block(3, b"brain.Event:2"),
        summary("loss", 0, single(2, 0.1)),
        summary("loss/\u00fc \u20ac", 300, single(2, -1e30)),
        summary("negative", -1, single(2, float("inf"))),
        summary("late", (1 << 62) + 1, single(2, 0.0)),
        summary("notes", 1, text("**hello** \u00fc\n" + "x" * 200)),
        summary("weights", 2, histogram(0, 4, 5, 10, 30, [1, 2, 3, 4], [1, 1, 1, 2])),
        summary("nothing", 3, histogram(0, 0, 0, 0, 0, [0, 0], [0, 0])),
    ]
    path = pathlib.Path(__file__).parent / "events.reference"
    path.write_bytes(b"".join(record(e) for e in events))
