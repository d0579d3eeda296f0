"""Packs matrices with bitsandbytes on the CPU, for src/packed/tests.rs.

pip install torch bitsandbytes
python nf4.py > nf4.json
"""

import json

import bitsandbytes.functional as functional
import torch

torch.manual_seed(0)
cases = []
# PyTorch's layers are [out, in]. The first has whole blocks, the others end with a shorter one.
for out, width in [(4, 64), (3, 50), (5, 7)]:
    matrix = (torch.randn(out, width) * 0.05).bfloat16().float()
    codes, state = functional.quantize_4bit(matrix, blocksize=64, quant_type="nf4")
    dense = functional.dequantize_4bit(codes, state)
    cases.append(
        {
            "out": out,
            "in": width,
            "matrix": matrix.flatten().tolist(),
            "codes": codes.flatten().tolist(),
            "scales": state.absmax.tolist(),
            "dense": dense.flatten().tolist(),
        }
    )
print(json.dumps(cases))
