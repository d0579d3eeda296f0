"""Golden values of AdamW and of learning-rate schedules, as PyTorch computes them.

Run by hand: python3 adamw.py   (writes adamw.json next to itself)
"""

import json
import math
import pathlib
import warnings

import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

STEPS = 20
KEPT = (1, 2, 5, 10, 20)
PEAK = 1e-3


def floats(tensor):
    """The float32 values, flattened by rows, each exact as a JSON number."""
    return tensor.detach().flatten().tolist()


def optimizer_case(name, seed, lr, betas, eps, decay, rates=None):
    """20 updates of a 3x4 matrix and a vector of 5; decay is (matrix's, vector's)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape, scale):
        return scale * torch.randn(shape, generator=generator, dtype=torch.float32)

    matrix = torch.nn.Parameter(draw((3, 4), 0.5))
    vector = torch.nn.Parameter(draw((5,), 0.5))
    initial = {"matrix": floats(matrix), "vector": floats(vector)}
    groups = [
        {"params": [matrix], "weight_decay": decay[0]},
        {"params": [vector], "weight_decay": decay[1]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, foreach=False, fused=False)
    rates = rates or [lr] * STEPS
    gradients, kept = [], []
    for step in range(1, STEPS + 1):
        # Sizes from 1e-3 to 1e1; the vector's fourth gradient is small enough for eps to matter,
        # its fifth always zero.
        scale = 10.0 ** (step % 5 - 3)
        matrix.grad = draw((3, 4), scale)
        vector.grad = draw((5,), scale) * torch.tensor([1.0, 1.0, 1.0, 1e-6, 0.0])
        gradients.append({"matrix": floats(matrix.grad), "vector": floats(vector.grad)})
        for group in optimizer.param_groups:
            group["lr"] = rates[step - 1]
        optimizer.step()
        if step in KEPT:
            kept.append({"step": step, "matrix": floats(matrix), "vector": floats(vector)})
    return {
        "name": name,
        "beta1": betas[0],
        "beta2": betas[1],
        "eps": eps,
        "decay_matrix": decay[0],
        "decay_vector": decay[1],
        "rates": rates,
        "initial": initial,
        "gradients": gradients,
        "after": kept,
    }


def schedule_case(kind, warmup, floor):
    """The rate that each of the 20 updates uses."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    rest = STEPS - warmup

    def main_part():
        if kind == "constant":
            return ConstantLR(optimizer, factor=1.0, total_iters=0)
        if kind == "linear":
            return LinearLR(optimizer, start_factor=1.0, end_factor=floor / PEAK, total_iters=rest)
        return CosineAnnealingLR(optimizer, T_max=rest, eta_min=floor)

    if warmup == 0:
        scheduler = main_part()
    else:
        first = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        scheduler = SequentialLR(optimizer, [first, main_part()], milestones=[warmup])
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    check(kind, warmup, floor, rates)
    return {
        "kind": kind,
        "total": STEPS,
        "warmup": warmup,
        "peak": PEAK,
        "floor": floor,
        "rates": rates,
    }


def check(kind, warmup, floor, rates):
    """PyTorch's schedulers compute rates recursively: hold them against the closed forms."""
    for update, rate in enumerate(rates):
        done = (update - warmup) / (STEPS - warmup)
        shape = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        expected = floor + (PEAK - floor) * shape[kind]
        if update < warmup:
            expected = PEAK * (update + 1) / (warmup + 1)
        assert math.isclose(rate, expected, rel_tol=1e-9), (kind, warmup, floor, update, rate, expected)
    assert rates[warmup] == PEAK, (kind, warmup, rates[warmup])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # SequentialLR steps its schedulers with the `epoch` argument that it deprecates itself.
    warnings.filterwarnings("ignore", category=UserWarning, module="torch.optim.lr_scheduler")
    schedules = [
        schedule_case(kind, warmup, floor)
        for kind in ("constant", "linear", "cosine")
        for warmup in (5, 0)
        for floor in ((1e-4, 0.0) if kind != "constant" else (0.0,))
    ]
    scheduled = next(s["rates"] for s in schedules if (s["kind"], s["warmup"], s["floor"]) == ("cosine", 5, 1e-4))
    optimizers = [
        optimizer_case("plain", 1, 1e-3, (0.9, 0.999), 1e-8, (0.1, 0.1)),
        optimizer_case("two groups, scheduled", 2, 1e-3, (0.9, 0.99), 1e-8, (0.1, 0.0), scheduled),
        optimizer_case("no decay, large eps", 3, 3e-2, (0.8, 0.95), 1e-6, (0.0, 0.0)),
    ]
    golden = {"torch": torch.__version__, "optimizers": optimizers, "schedules": schedules}
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
