#!/usr/bin/env python3
"""Makes the files beside this one with Python's own tools of their formats, for tests/io to read.

Run: python3 tests/io/golden/make.py, with numpy and safetensors (0.8 made the committed file).
"""

import pathlib

import numpy as np
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent
rows = np.arange(12).reshape(3, 4)

dtypes = ["f4", "f8", "f2", "i1", "u1", "i2", "i4", "i8", "u2", "u4", "u8", "c8", "c16", "?"]
arrays = {name.replace("?", "b1"): (rows - 5 if name[0] != "u" else rows * 20).astype(name) for name in dtypes}
arrays["complex"] = (rows + 1j * rows[::-1]).astype("c16")
arrays["scalar"] = np.float64(2.5)
arrays["empty"] = np.zeros((2, 0, 3), "f4")
arrays["columns"] = np.asfortranarray(rows.astype("f4"))
arrays["cube"] = np.asfortranarray(np.arange(24).reshape(2, 3, 4))
arrays["big"] = rows.astype(">i4")
arrays["big_complex"] = (rows - 2j).astype(">c8")
arrays["folder/name"] = np.array([1.5, -2.5])
np.savez(here / "arrays.npz", **arrays)
np.savez_compressed(here / "packed.npz", zeros=np.zeros(100000, "i4"), **arrays)
np.save(here / "rows.npy", rows.astype("f4"))

tensors = {key: arrays[key] for key in ["f4", "f8", "f2", "i1", "u1", "i2", "i4", "i8", "u2", "b1", "empty", "scalar"]}
tensors["a \"name\" with ünïcode/and.dots"] = np.array([1, 2, 3], "i8")
save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, here / "python.safetensors",
          metadata={"made": "by Python", "text": "line\nline \"two\" ü"})
