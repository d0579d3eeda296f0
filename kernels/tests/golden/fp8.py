"""Casts to 8 bits, and a map of 8-bit operands, by torch, for src/fp8/tests.rs.

For each format: the runs of bf16 numbers that torch casts to one code, and the scale of tensors with one magnitude, by the
formula of torchao's `amax_to_scale` with `round_scales_to_power_of_2`. Then a map and its gradients, of sums in f64.

pip install torch
python fp8.py > fp8.json
"""

import json

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def scale(x, dtype):
    largest = x.abs().max().double()
    return torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / largest)))


def rounded(x, dtype):
    factor = scale(x, dtype)
    return (x.double() * factor).float().to(dtype).double() / factor


def runs(dtype):
    """Of the finite bf16 numbers from 0 up to the format's largest: the first of each code, and what the code is."""
    numbers = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[numbers.float() <= torch.finfo(dtype).max]
    codes = numbers.float().to(dtype).view(torch.uint8).tolist()
    found, values = [], torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).double().tolist()
    for bits, code in enumerate(codes):
        if not found or found[-1][1] != code:
            found.append([bits, code, values[code]])
    return found


def scales(dtype):
    torch.manual_seed(5)
    magnitudes = torch.exp2(torch.rand(60) * 60 - 30).bfloat16().float().tolist()
    magnitudes += [448.0, 450.0, 57344.0, 1.75, 1.7578125, 1.0, 2.0**-20]
    return [[x, scale(torch.tensor([x]), dtype).item()] for x in magnitudes]


def affine():
    torch.manual_seed(7)
    x, weight, grad = torch.randn(5, 32), torch.randn(32, 48) * 0.02, torch.randn(5, 48) * 1e-3
    x[2, 3] = 11.0
    bias = torch.randn(48)
    x, weight, grad, bias = (t.bfloat16().float() for t in (x, weight, grad, bias))
    x8, weight8 = (rounded(t, torch.float8_e4m3fn) for t in (x, weight))
    grad8 = rounded(grad, torch.float8_e5m2)
    flat = lambda t: [float(f"{x:.8g}") for x in t.flatten().tolist()]
    return {
        "shape": [5, 32, 48],
        "x": flat(x),
        "weight": flat(weight),
        "bias": flat(bias),
        "grad": flat(grad),
        "y": flat(x8 @ weight8 + bias.double()),
        "of_x": flat(grad8 @ weight8.T),
        "of_weight": flat(x8.T @ grad8),
        "of_bias": flat(grad.double().sum(0)),
    }


found = {name: {"runs": runs(dtype), "scales": scales(dtype)} for name, dtype in FORMATS.items()}
found["map"] = affine()
lines = [f'"{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in found.items()]
print("{\n" + ",\n".join(lines) + "\n}")
