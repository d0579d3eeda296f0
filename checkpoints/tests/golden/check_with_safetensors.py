#!/usr/bin/env python3
"""Opens consolidated files with Python's safetensors, and compares every value with the one that was saved.

    pip install safetensors torch
    python3 check_with_safetensors.py

The values are made here as tests/state/mod.rs makes them, for step 7.
"""

import math
from pathlib import Path

import torch
from safetensors import safe_open

STEP = 7
MASK = (1 << 64) - 1


def random_bytes(seed: int, count: int) -> bytes:
    """The low bytes of SplitMix64."""
    result = bytearray()
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        result.append((mixed ^ (mixed >> 31)) & 0xFF)
    return bytes(result)


def floats(salt: int, *shape: int) -> torch.Tensor:
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape)
    numbers = torch.frombuffer(bytearray(random_bytes(STEP * 100 + salt, 2 * count)), dtype=torch.int16)
    return (numbers.to(torch.float32) / 32768).reshape(shape)


EXPECTED = {
    "embedding.weight": floats(1, 7, 3),
    "blocks.0.weight": floats(2, 4, 5),
    "scale": floats(3),
    "nothing": floats(4, 0, 3),
    "seen": torch.frombuffer(bytearray(random_bytes(STEP, 16)), dtype=torch.int64),
    "half": floats(9, 6).view(torch.bfloat16),
}


def check(path: Path, dtype: torch.dtype | None) -> None:
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
        assert set(file.keys()) == set(EXPECTED), file.keys()
        for name, expected in EXPECTED.items():
            if dtype is not None and expected.is_floating_point():
                expected = expected.to(dtype)
            found = file.get_tensor(name)
            assert found.dtype == expected.dtype, (name, found.dtype)
            assert found.shape == expected.shape, (name, found.shape)
            if found.dtype == torch.bfloat16:
                # A NaN is not equal to itself; its bits are.
                found, expected = found.view(torch.int16), expected.view(torch.int16)
            assert torch.equal(found, expected), (name, found, expected)
    print(f"{path.name}: {len(EXPECTED)} tensors are as they were saved")


if __name__ == "__main__":
    folder = Path(__file__).parent
    check(folder / "model.safetensors", None)
    check(folder / "model-bf16.safetensors", torch.bfloat16)
