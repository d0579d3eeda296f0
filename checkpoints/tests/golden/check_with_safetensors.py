#!/usr/bin/env python3
"""Opens consolidated files with Python's safetensors, and compares every value with the one that was saved.

    pip install safetensors numpy ml_dtypes
    python3 check_with_safetensors.py

Computes the values like tests/all/state/mod.rs, for step 7.
"""

from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16
from safetensors import safe_open

STEP = 7
MASK = (1 << 64) - 1


def random_bytes(seed: int, count: int) -> bytes:
    """Returns the low bytes of SplitMix64."""
    result = bytearray()
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        result.append((mixed ^ (mixed >> 31)) & 0xFF)
    return bytes(result)


def floats(salt: int, *shape: int) -> np.ndarray:
    numbers = np.frombuffer(random_bytes(STEP * 100 + salt, 2 * int(np.prod(shape))), dtype="<i2")
    return (numbers.astype("<f4") / np.float32(32768)).reshape(shape)


EXPECTED = {
    "embedding.weight": floats(1, 7, 3),
    "blocks.0.weight": floats(2, 4, 5),
    "scale": floats(3),
    "nothing": floats(4, 0, 3),
    "seen": np.frombuffer(random_bytes(STEP, 16), dtype="<i8"),
    "half": floats(9, 6).view(bfloat16),
}


def check(path: Path, dtype: type | None) -> None:
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
        assert set(file.keys()) == set(EXPECTED), file.keys()
        for name, expected in EXPECTED.items():
            if dtype is not None and expected.dtype == np.float32:
                expected = expected.astype(dtype)
            found = file.get_tensor(name)
            assert found.dtype == expected.dtype, (name, found.dtype)
            assert found.shape == expected.shape, (name, found.shape)
            # Compares bytes, since a NaN is not equal to itself.
            assert found.tobytes() == expected.tobytes(), (name, found, expected)
    print(f"{path.name}: {len(EXPECTED)} tensors are as they were saved")


if __name__ == "__main__":
    folder = Path(__file__).parent
    check(folder / "model.safetensors", None)
    check(folder / "model-bf16.safetensors", bfloat16)
