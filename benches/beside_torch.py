"""Steps of a GPT in firebrick and in PyTorch: same shapes, cores, optimizer and clipping, in turns in one run.

    python3 benches/beside_torch.py [--cases NAME ...] [--pairs 9] [--steps 8] [--warmup 3] [--threads N]
        [--firebrick PATH] [--list]

Needs torch (`pip install torch`), and builds firebrick with cargo unless `--firebrick` names it. `--list` prints the
names of the cases. Cases that end in `recompute` compare firebrick with itself: recompute of every block with none.

A pair is one process of each side, one after the other, and pairs alternate which side goes first. A process makes
`--warmup` updates that do not count and `--steps` that do; its time is the median of these. PyTorch runs eagerly and,
if it has a compiler, through `torch.compile`; the faster of the two, measured once before the pairs, is compared.

Printed for each case are the medians over the pairs, the spread (the lowest and the highest), and the ratio of
firebrick to PyTorch, for

* seconds of an update: forward, backward, clipping and AdamW, from the end of one update to the end of the next;
* resident memory: the largest resident set of the process (`ru_maxrss`), interpreter and libraries included.

What is the same: the model (pre-norm blocks, learned positions, exact GELU, biases, a head tied to the embeddings;
both sides' number of parameters is compared), the batch's shape, f32 or bf16 with f32 master weights, AdamW with betas
0.9 and 0.95 and a decay of 0.1, clipping to a norm of 1, no dropout, and the number of threads. PyTorch uses
`scaled_dot_product_attention`, its fused AdamW, and in bf16 `torch.autocast`. The tokens are random on both sides.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import firebrick

SMALL = {"layers": 6, "heads": 8, "width": 256, "vocabulary": 1024}
LARGE = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 8000}

CASES = {
    "5M-8x256-f32": SMALL | {"batch": 8, "block": 256, "dtype": "f32"},
    "5M-8x256-bf16": SMALL | {"batch": 8, "block": 256, "dtype": "bf16"},
    "5M-2x1024-f32": SMALL | {"batch": 2, "block": 1024, "dtype": "f32"},
    "5M-2x1024-bf16": SMALL | {"batch": 2, "block": 1024, "dtype": "bf16"},
    "5M-1x2048-f32": SMALL | {"batch": 1, "block": 2048, "dtype": "f32"},
    "5M-1x2048-bf16": SMALL | {"batch": 1, "block": 2048, "dtype": "bf16"},
    "92M-4x512-f32": LARGE | {"batch": 4, "block": 512, "dtype": "f32"},
    "92M-4x512-bf16": LARGE | {"batch": 4, "block": 512, "dtype": "bf16"},
    "5M-8x256-recompute": SMALL | {"batch": 8, "block": 256, "dtype": "f32", "recompute": True},
    "92M-4x512-recompute": LARGE | {"batch": 4, "block": 512, "dtype": "f32", "recompute": True},
}

RUN = """(
    seed: 1,
    device: "cpu",
    data: (path: {train}, valid: {valid}, tokenizer: Characters, block: {block}),
    model: Gpt(layers: {layers}, heads: {heads}, width: {width}, bias: true, tied: true),
    optimizer: AdamW(betas: (0.9, 0.95), weight_decay: 0.1),
    schedule: Constant(lr: 1e-4),
    batch: (micro: {batch}),
    steps: {steps},
    evaluate_every: 1000000, // at the end alone
    strategies: [{strategies}],
    output: {output},
)
"""


# The PyTorch side, in its own process.


def torch_side(case, mode, warmup, steps, threads):
    """Prints the seconds of each update and the number of parameters."""
    import contextlib

    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    width, heads, vocabulary, block = (case[name] for name in ["width", "heads", "vocabulary", "block"])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.joint, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            rows, length, _ = x.shape
            parts = self.joint(self.attention_norm(x)).view(rows, length, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, width))
            return x + self.narrow(functional.gelu(self.widen(self.feed_forward_norm(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
            self.blocks = nn.ModuleList(Block() for _ in range(case["layers"]))
            self.norm = nn.LayerNorm(width)
            for weight in [self.tokens.weight, self.positions.weight]:
                nn.init.normal_(weight, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.T
            return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model
    bf16 = case["dtype"] == "bf16"
    seconds, last = [], time.perf_counter()
    for _ in range(warmup + steps):
        rows = torch.randint(vocabulary, (case["batch"], block + 1))
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = run(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    print(json.dumps({"seconds": seconds, "parameters": sum(x.numel() for x in model.parameters())}))


# Both sides, from outside.


def finished(command, environment):
    """Runs a process to its end: what it printed, and its largest resident set in bytes. `None` if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text, said = out.read(), errors.read()
    if process.returncode != 0:
        print(f"{' '.join(command)}\n{said[-2000:]}", file=sys.stderr)
        return None
    return text, usage.ru_maxrss * 1024


def of_torch(case, mode, options):
    command = [sys.executable, os.path.abspath(__file__), "--torch-side", json.dumps(case), "--mode", mode]
    command += ["--steps", str(options.steps), "--warmup", str(options.warmup), "--threads", str(options.threads)]
    done = finished(command, os.environ | {"OMP_NUM_THREADS": str(options.threads)})
    if done is None:
        return None
    found = json.loads(done[0].splitlines()[-1])
    return statistics.median(found["seconds"][options.warmup :]), done[1], found["parameters"]


def of_firebrick(case, recompute, program, options, folder):
    strategies = ["Amp(bf16)"] if case["dtype"] == "bf16" else []
    strategies += ["Recompute(every: 1)"] if recompute else []
    output = os.path.join(folder, "run")
    train, valid = (os.path.join(folder, name) for name in ["train.txt", "valid.txt"])
    letters = [chr(0x4E00 + at) for at in range(case["vocabulary"])]
    draw = random.Random(1)
    needed = (options.steps + options.warmup + 1) * case["batch"] * (case["block"] + 1)
    with open(train, "w", encoding="utf-8") as file:
        file.write("".join(letters) + "".join(draw.choices(letters, k=needed)))
    with open(valid, "w", encoding="utf-8") as file:
        file.write("".join(draw.choices(letters, k=case["block"] + 1)))
    run = os.path.join(folder, "run.ron")
    with open(run, "w", encoding="utf-8") as file:
        what = {name: firebrick.quoted(path) for name, path in [("train", train), ("valid", valid), ("output", output)]}
        what |= {"strategies": ", ".join([*strategies, "Clip(norm: 1.0)"]), "steps": options.steps + options.warmup}
        file.write(RUN.format(**case | what))
    command = [program, "train", run, "--plain"]
    done = finished(command, os.environ | {"RAYON_NUM_THREADS": str(options.threads)})
    if done is None:
        sys.exit(1)
    steps = firebrick.metrics(output, "train")
    seconds = [step["seconds"] for step in steps][options.warmup :]
    return statistics.median(seconds), done[1], steps[-1]["parameter_bytes"]


def turns(sides, pairs):
    """The results of both sides, whose order alternates."""
    found = ([], [])
    for pair in range(pairs):
        for side in [0, 1] if pair % 2 == 0 else [1, 0]:
            found[side].append(sides[side]())
    return found


def line(name, ours, theirs, unit, scale):
    """Medians, spreads, and the median of the pairs' ratios."""
    ratios = [our / their for our, their in zip(ours, theirs)]
    sides = [
        f"{statistics.median(side) * scale:9.3f} ({min(side) * scale:.3f} to {max(side) * scale:.3f}) {unit}"
        for side in [ours, theirs]
    ]
    ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    print(f"  {name:<8}{sides[0]:>42}{sides[1]:>42}    {ratio}", flush=True)


def compare(name, case, program, options, folder):
    case, recompute = dict(case), case.get("recompute", False)
    case.pop("recompute", None)
    ours = lambda: of_firebrick(case, recompute, program, options, folder)
    if recompute:
        print(f"{name}: firebrick with recompute, beside firebrick without", flush=True)
        theirs = lambda: of_firebrick(case, False, program, options, folder)
    else:
        tried = {mode: of_torch(case, mode, options) for mode in ["eager", "compile"]}
        tried = {mode: found for mode, found in tried.items() if found is not None}
        if not tried:
            sys.exit("PyTorch runs neither eagerly nor compiled: see above")
        mode = min(tried, key=lambda mode: tried[mode][0])
        others = ", ".join(f"{mode} {found[0]:.3f} s" for mode, found in tried.items())
        parameters, of_theirs = ours()[2] // (2 if case["dtype"] == "bf16" else 4), tried[mode][2]
        print(f"{name}: {of_theirs:,} parameters, beside PyTorch's {mode} ({others})", flush=True)
        if case["dtype"] == "f32" and parameters != of_theirs:
            sys.exit(f"firebrick's model has {parameters:,} parameters, and PyTorch's {of_theirs:,}")
        theirs = lambda: of_torch(case, mode, options)
    ours, theirs = turns([ours, theirs], options.pairs)
    if None in theirs:
        sys.exit("a run of PyTorch failed: see above")
    line("time", *([found[0] for found in side] for side in [ours, theirs]), "s", 1)
    line("memory", *([found[1] for found in side] for side in [ours, theirs]), "MB", 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--firebrick")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--torch-side", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        return print("\n".join(CASES))
    if options.torch_side:
        side = options.torch_side
        return torch_side(side, options.mode, options.warmup, options.steps, options.threads)
    program = options.firebrick or firebrick.build()
    print(f"{options.pairs} pairs of {options.steps} updates on {options.threads} threads; median (lowest to highest)")
    print(f"  {'':<8}{'firebrick':>42}{'beside':>42}    ratio")
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            compare(name, CASES[name], program, options, folder)


if __name__ == "__main__":
    main()
