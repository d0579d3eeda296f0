"""Golden values of Adafactor, LAMB and the 8-bit quantisation map.

Run by hand: python3 optimizers.py BITSANDBYTES   (writes optimizers.json next to itself)

BITSANDBYTES is the folder of the unpacked package of bitsandbytes: its `functional.py` alone is read.

Adafactor is that of transformers. LAMB is DeepSpeed's FusedLamb (csrc/lamb/fused_lamb_cuda_kernel.cu), whose
equation is below in numpy's float64: DeepSpeed's own runs on a GPU alone. Where its bias correction and its bounds
are out of the way it is held to timm's LAMB.
"""

import ast
import importlib.util
import json
import math
import pathlib
import sys
import types

import numpy
import torch
import transformers
from transformers.optimization import Adafactor

STEPS = 20
KEPT = (1, 2, 5, 10, 20)
SHAPES = {"matrix": (3, 4), "vector": (5,), "cube": (2, 3, 4)}


def floats(tensor):
    """The float32 values, flattened by rows, each in as many digits as tell it from all others."""
    return [float(str(value)) for value in tensor.detach().to(torch.float32).flatten().numpy()]


def drawn(seed):
    """Parameters, and the gradients of each step, of sizes from 1e-3 to 1e1; the vector's last is always 0."""
    generator = torch.Generator().manual_seed(seed)

    def draw(scale):
        return {
            name: scale * torch.randn(shape, generator=generator, dtype=torch.float32)
            for name, shape in SHAPES.items()
        }

    initial = draw(0.5)
    gradients = [draw(10.0 ** (step % 5 - 3)) for step in range(1, STEPS + 1)]
    for gradient in gradients:
        gradient["vector"][-1] = 0.0
    return initial, gradients


def case(name, settings, rate, initial, gradients, update):
    """`update(step, gradients)` makes the update, of which the parameters that it answers are kept."""
    kept = []
    for step, gradient in enumerate(gradients, start=1):
        params = update(step, gradient)
        if step in KEPT:
            kept.append({"step": step} | {name: floats(param) for name, param in params.items()})
    as_lists = lambda tensors: {name: floats(tensor) for name, tensor in tensors.items()}
    return {
        "name": name,
        "settings": settings,
        "rate": rate,
        "initial": as_lists(initial),
        "gradients": [as_lists(gradient) for gradient in gradients],
        "after": kept,
    }


def adafactor(name, seed, rate, **settings):
    initial, gradients = drawn(seed)
    params = {name: torch.nn.Parameter(value.clone()) for name, value in initial.items()}
    relative = settings.get("relative_step", False)
    given = {"relative_step": False, "scale_parameter": False} | settings
    optimizer = Adafactor(params.values(), lr=None if relative else rate, **given)

    def update(_, gradient):
        for name, param in params.items():
            param.grad = gradient[name].clone()
        optimizer.step()
        return params

    # With relative_step the rate is a factor of the optimizer's own here.
    return case(name, given, 1.0 if relative else rate, initial, gradients, update)


def lamb_step(step, p, g, m, v, rate, beta1, beta2, eps, decay, max_coeff, min_coeff, correct):
    """One update of fused_lamb_cuda_kernel.cu, in float64."""
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    update = m / (numpy.sqrt(v) + eps) + decay * p
    weights, updates = numpy.sqrt((p * p).sum()), numpy.sqrt((update * update).sum())
    coeff = 1.0
    if weights != 0 and updates != 0:
        coeff = min(max(weights / updates, min_coeff), max_coeff)
    size = rate * math.sqrt(1 - beta2**step) / (1 - beta1**step) if correct else rate
    p -= size * coeff * update
    return coeff


def lamb(name, seed, rate, scale=1.0, betas=(0.9, 0.999), eps=1e-8, decay=0.0, max_coeff=10.0, min_coeff=0.01, correct=True):
    initial, gradients = drawn(seed)
    initial = {name: value * scale for name, value in initial.items()}
    state = {name: [value.numpy().astype(numpy.float64), 0.0, 0.0] for name, value in initial.items()}
    for values in state.values():
        values[1], values[2] = numpy.zeros_like(values[0]), numpy.zeros_like(values[0])
    coeffs = []

    def update(step, gradient):
        for name, (p, m, v) in state.items():
            g = gradient[name].numpy().astype(numpy.float64)
            coeffs.append(
                lamb_step(step, p, g, m, v, rate, *betas, eps, decay, max_coeff, min_coeff, correct)
            )
        return {name: torch.from_numpy(values[0]) for name, values in state.items()}

    settings = {"betas": betas, "eps": eps, "weight_decay": decay}
    settings |= {"max_coeff": max_coeff, "min_coeff": min_coeff, "bias_correction": correct}
    found = case(name, settings, rate, initial, gradients, update)
    print(name, "coefficients from", min(coeffs), "to", max(coeffs))
    return found


def hold_to_timm(timm_lamb):
    """Without bias correction, and where no bound is met, timm's is the same."""
    initial, gradients = drawn(11)
    params = [torch.nn.Parameter(initial["matrix"].double())]
    options = dict(lr=1e-2, eps=1e-6, weight_decay=0.1, bias_correction=False, max_grad_norm=None)
    optimizer = timm_lamb(params, **options, always_adapt=True)
    p = initial["matrix"].numpy().astype(numpy.float64)
    m, v = numpy.zeros_like(p), numpy.zeros_like(p)
    for step, gradient in enumerate(gradients, start=1):
        g = gradient["matrix"].numpy().astype(numpy.float64)
        coeff = lamb_step(step, p, g, m, v, 1e-2, 0.9, 0.999, 1e-6, 0.1, 10.0, 0.01, False)
        assert 0.01 < coeff < 10.0
        params[0].grad = gradient["matrix"].double()
        optimizer.step()
        assert numpy.allclose(p, params[0].detach().numpy(), rtol=1e-9), step


def timm_lamb():
    """timm's class out of its file: the package itself asks for torchvision."""
    folder = pathlib.Path(importlib.util.find_spec("timm").origin).parent / "optim"
    package = types.ModuleType("timm_optim")
    package.__path__ = [str(folder)]
    sys.modules["timm_optim"] = package
    spec = importlib.util.spec_from_file_location("timm_optim.lamb", folder / "lamb.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lamb


def dynamic_maps(folder):
    """`create_dynamic_map` out of bitsandbytes' functional.py, whose package looks for a GPU."""
    source = (pathlib.Path(folder) / "functional.py").read_text()
    wanted = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "create_dynamic_map"
    ]
    names = {"torch": torch}
    exec(compile(ast.Module(wanted, []), "functional.py", "exec"), names)
    return {
        "signed": floats(names["create_dynamic_map"](signed=True)),
        "unsigned": floats(names["create_dynamic_map"](signed=False)),
    }


def main():
    torch.set_num_threads(1)
    hold_to_timm(timm_lamb())
    golden = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "adafactor": [
            adafactor("as Trainer sets it", 1, 1e-3),
            adafactor("scaled by the parameter, decaying", 2, 1e-2, scale_parameter=True, weight_decay=0.1),
            adafactor("relative", 3, 0.0, scale_parameter=True, relative_step=True),
            adafactor("relative, with warmup", 4, 0.0, relative_step=True, warmup_init=True),
            adafactor(
                "a first moment, other numbers", 5, 1e-2, beta1=0.9, clip_threshold=0.5, decay_rate=-0.5,
                eps=(1e-10, 1e-2), weight_decay=0.01,
            ),
        ],
        "lamb": [
            lamb("defaults", 6, 1e-2),
            lamb("decaying", 7, 1e-2, decay=0.1, eps=1e-6, betas=(0.9, 0.99)),
            lamb("no correction, narrow bounds", 8, 1e-2, max_coeff=0.3, min_coeff=0.2, correct=False),
            lamb("large weights", 9, 1e-3, scale=60.0),
            lamb("weights that start at 0", 10, 1e-2, scale=0.0, decay=0.01),
        ],
        "dynamic_map": dynamic_maps(sys.argv[1]),
    }
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
