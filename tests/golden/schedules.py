"""Golden values of learning-rate schedules, as Transformers and DeepSpeed compute them.

Run by hand: python3 schedules.py DEEPSPEED   (writes schedules.json next to itself)

DEEPSPEED is `deepspeed/runtime/lr_schedules.py` of DeepSpeed's source distribution, which is loaded alone: nothing
else of DeepSpeed is built or imported. Every rate is the one that the optimizer holds when it steps, with the
scheduler stepped after it, as Transformers' trainer and DeepSpeed's engine do.
"""

import importlib.util
import json
import logging
import pathlib
import re
import sys
import types

import torch
import transformers
from transformers import TrainingArguments, optimization

TOTAL = 50
PAST_THE_END = 4
LR = 3e-3


def rates(make, lr, updates=TOTAL + PAST_THE_END):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(optimizer)
    found = []
    for _ in range(updates):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def of_transformers(name, function, ours, **arguments):
    """`ours` are the fields of the schedule `name`, beside `arguments` of the function."""
    make = getattr(optimization, function)
    # Past the end of the run its cosines go on as waves, and ours stay down.
    past = 1 if name == "Cosine" else PAST_THE_END
    found = rates(lambda optimizer: make(optimizer, **arguments), LR, TOTAL + past)
    schedule = {name: {"lr": LR, "from_zero": True, **ours}}
    return {"of": f"transformers.{function}", "schedule": schedule, "rates": found}


def of_deepspeed(name, module, params, **ours):
    """`params` are read by both under DeepSpeed's names."""
    # Momentum is not cycled here.
    theirs = {**params, "cycle_momentum": False} if name == "OneCycle" else params
    found = rates(lambda optimizer: getattr(module, name)(optimizer, **theirs), LR)
    return {"of": f"deepspeed.{name}", "schedule": {name: {**params, **ours}}, "rates": found}


def load_deepspeed(path):
    stub = types.ModuleType("deepspeed.utils")
    stub.logger = logging.getLogger("deepspeed")
    stub.logger.setLevel(logging.ERROR)
    sys.modules |= {"deepspeed": types.ModuleType("deepspeed"), "deepspeed.utils": stub}
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def warmup_of(ratio):
    """The updates of a ratio, as the trainer's arguments round it."""
    return TrainingArguments.get_warmup_steps(types.SimpleNamespace(warmup_steps=ratio), TOTAL)


def transformers_cases():
    ends = {"num_training_steps": TOTAL}
    for warmup in (0, 1, 7):
        warms, ours = {"num_warmup_steps": warmup}, {"warmup": warmup}
        yield of_transformers("Constant", "get_constant_schedule_with_warmup", ours, **warms)
        yield of_transformers("Linear", "get_linear_schedule_with_warmup", ours, **warms, **ends)
        yield of_transformers("Cosine", "get_cosine_schedule_with_warmup", ours, **warms, **ends)
    # The second is 3.5 updates; the product of the third is a little above 7, so that it is rounded up to 8.
    for ratio in (0.1, 0.07, 0.14):
        warms, ours = {"num_warmup_steps": warmup_of(ratio)}, {"warmup": {"Ratio": ratio}}
        yield of_transformers("Linear", "get_linear_schedule_with_warmup", ours, **warms, **ends)
    for warmup, min_lr in ((0, 1e-3), (7, 1e-4)):
        both = {"num_warmup_steps": warmup, "min_lr": min_lr}
        ours = {"warmup": warmup, "min_lr": min_lr}
        yield of_transformers("Cosine", "get_cosine_with_min_lr_schedule_with_warmup", ours, **both, **ends)
    for warmup, cycles in ((0, 1), (6, 3), (7, 5)):
        both = {"num_warmup_steps": warmup, "num_cycles": cycles}
        function = "get_cosine_with_hard_restarts_schedule_with_warmup"
        ours = {"warmup": warmup, "num_cycles": cycles}
        yield of_transformers("CosineRestarts", function, ours, **both, **ends)
    for warmup, power, end in ((0, 1.0, 1e-7), (7, 2.0, 1e-4), (7, 0.5, 0.0)):
        both = {"num_warmup_steps": warmup, "power": power, "lr_end": end}
        function = "get_polynomial_decay_schedule_with_warmup"
        ours = {"warmup": warmup, "power": power, "lr_end": end}
        yield of_transformers("Polynomial", function, ours, **both, **ends)
    for warmup, timescale in ((0, None), (7, None), (7, 3), (7, 40)):
        both = {"num_warmup_steps": warmup, "timescale": timescale}
        ours = {"warmup": warmup, "timescale": timescale}
        yield of_transformers("InverseSqrt", "get_inverse_sqrt_schedule", ours, **both)
    for warmup, stable, decay, up, down, ratio in (
        (0, None, 20, "linear", "cosine", 0.0),
        (7, None, 20, "linear", "linear", 0.1),
        (7, 10, 30, "cosine", "1-sqrt", 0.1),
        (7, 20, 20, "1-sqrt", "cosine", 0.5),
    ):
        both = {"num_warmup_steps": warmup, "num_decay_steps": decay}
        length = ends if stable is None else {"num_stable_steps": stable}
        shapes = {"warmup_type": up, "decay_type": down}
        ours = {**both, "num_stable_steps": stable, **shapes, "min_lr": LR * ratio}
        yield of_transformers("Wsd", "get_wsd_schedule", ours, **both, **length, **shapes, min_lr_ratio=ratio)


def deepspeed_cases(module):
    for kind in ("log", "linear"):
        for steps, min_lr in ((1, 0.0), (9, 0.0), (20, 1e-4)):
            warmup = {"warmup_min_lr": min_lr, "warmup_max_lr": LR}
            warmup |= {"warmup_num_steps": steps, "warmup_type": kind}
            yield of_deepspeed("WarmupLR", module, warmup)
            yield of_deepspeed("WarmupDecayLR", module, {**warmup, "total_num_steps": TOTAL - steps})
        for steps, start, end in ((9, 0.0, 1e-4), (20, 0.2, 0.1)):
            ratios = {"warmup_min_ratio": start, "cos_min_ratio": end}
            warmup = {"warmup_num_steps": steps, "warmup_type": kind, **ratios}
            yield of_deepspeed("WarmupCosineLR", module, {**warmup, "total_num_steps": TOTAL - steps}, lr=LR)
    between = {"cycle_min_lr": 1e-4, "cycle_max_lr": LR}
    for cycle in (
        {"cycle_first_step_size": 20},
        {"cycle_first_step_size": 11, "cycle_second_step_size": 23, "decay_lr_rate": 0.5, "decay_step_size": 7},
        {"cycle_first_step_size": 30, "cycle_first_stair_count": 6},
        {
            "cycle_first_step_size": 20,
            "cycle_second_step_size": 15,
            "cycle_first_stair_count": 4,
            "cycle_second_stair_count": 7,
            "decay_lr_rate": 2.0,
            "decay_step_size": 3,
        },
        {"cycle_first_step_size": 13, "cycle_second_step_size": 0, "decay_lr_rate": 1.0, "decay_step_size": 1},
    ):
        yield of_deepspeed("OneCycle", module, {**between, **cycle})
    for size, rate, staircase in ((5, 1.0, False), (7, 2.5, True), (2000, 10.0, False)):
        test = {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": size}
        test |= {"lr_range_test_step_rate": rate, "lr_range_test_staircase": staircase}
        yield of_deepspeed("LRRangeTest", module, test)


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    # The folder of a source distribution is named for its version.
    if found := re.search(r"deepspeed-([0-9.]+)/", str(path)):
        versions["deepspeed"] = found[1]
    cases = [*transformers_cases(), *deepspeed_cases(load_deepspeed(path))]
    golden = {"versions": versions, "total": TOTAL, "cases": cases}
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes,", len(cases), "cases")


if __name__ == "__main__":
    main()
