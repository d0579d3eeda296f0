"""Summed cross entropy of smoothed labels, and its gradient, from torch: writes label_smoothing.json."""

import json
import pathlib

import torch

torch.manual_seed(7)
logits = torch.randn(5, 4) * 3
labels = torch.tensor([2, -100, 0, 3, 3])
cases = []
for share in [0.0, 0.1, 0.5]:
    leaf = logits.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, labels, reduction="sum", label_smoothing=share)
    loss.backward()
    cases.append({"share": share, "loss": loss.item(), "grad": leaf.grad.tolist()})
golden = {"torch": torch.__version__, "logits": logits.tolist(), "labels": labels.tolist(), "cases": cases}
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text(json.dumps(golden, indent=1) + "\n")
