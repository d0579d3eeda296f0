"""Training steps beside PyTorch's: time and resident memory, and the ratio of both.

    python3 benches/beside_torch.py [--cases gpt5m-8x256 ..] [--pairs 9] [--steps 10] [--threads N] [--firebrick PATH]

Needs torch. Builds firebrick with cargo unless `--firebrick` names it.

Both sides train the same shapes on random tokens with AdamW and clipping to a norm of 1, on the same number of threads.
They take turns; each turn is a process of its own, which makes some steps before the timed ones, so both pay for their
threads and memory alike. PyTorch runs eagerly and, unless `--eager` is given, compiled by `torch.compile`: the faster
of both is what ours is compared with. In bf16 its forward pass runs under autocast, and ours with `Amp(bf16)`.

Printed are the medians, the smallest and the largest of all turns, and the ratio ours / theirs. Measure on a machine that
does nothing else: a busy one slows the two sides differently.
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

# layers, width, heads, vocabulary, rows, tokens of a row, dtype
CASES = {
    "gpt5m-8x256": (6, 256, 8, 1024, 8, 256, "f32"),
    "gpt5m-8x256-bf16": (6, 256, 8, 1024, 8, 256, "bf16"),
    "gpt5m-4x512": (6, 256, 8, 1024, 4, 512, "f32"),
    "gpt5m-2x1024": (6, 256, 8, 1024, 2, 1024, "f32"),
    "gpt5m-1x2048": (6, 256, 8, 1024, 1, 2048, "f32"),
    "gpt92m-4x512": (12, 768, 12, 8000, 4, 512, "f32"),
    "gpt92m-4x512-bf16": (12, 768, 12, 8000, 4, 512, "bf16"),
    "llama15m-4x512": (8, 384, 6, 4096, 4, 512, "f32"),
    "llama15m-4x512-bf16": (8, 384, 6, 4096, 4, 512, "bf16"),
}
# Ours beside ours.
OWN = {
    "recompute": ("gpt5m-8x256", "strategies=[Recompute(every: 1), Clip(norm: 1.0)]"),
    "bf16 beside f32": ("gpt5m-8x256", "strategies=[Amp(bf16), Clip(norm: 1.0)]"),
}
WARMUP = 3
RATE = 3e-4

RUN = """(
    device: "cpu",
    data: (path: {text}, tokenizer: File({tokenizer}), block: {length}, valid_fraction: 0.0),
    model: {model},
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Constant(lr: 3e-4),
    batch: (micro: {rows}),
    steps: 1000,
    strategies: [{strategies}],
    output: "unused",
)
"""


def is_llama(case):
    return case.startswith("llama")


def run_file(folder, case):
    """Writes the run file of a case, a text of random words and a tokenizer that knows them."""
    layers, width, heads, vocabulary, rows, length, dtype = CASES[case]
    words = [f"w{word}" for word in range(vocabulary)]
    model = {
        "type": "WordLevel",
        "vocab": {word: index for index, word in enumerate(words)},
        "unk_token": words[0],
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    names = {"text": f"{case}.txt", "tokenizer": f"{case}.json"}
    paths = {name: os.path.join(folder, file) for name, file in names.items()}
    with open(paths["tokenizer"], "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    draw = random.Random(1)
    with open(paths["text"], "w", encoding="utf-8") as file:
        for _ in range(200):
            file.write(" ".join(draw.choices(words, k=1000)) + "\n")
    shape = f"layers: {layers}, heads: {heads}, width: {width}"
    settings = {
        "model": f"Llama({shape})" if is_llama(case) else f"Gpt({shape})",
        "strategies": "Amp(bf16), Clip(norm: 1.0)" if dtype == "bf16" else "Clip(norm: 1.0)",
        "rows": rows,
        "length": length,
    }
    settings |= {name: firebrick.quoted(path) for name, path in paths.items()}
    path = os.path.join(folder, f"{case}.ron")
    with open(path, "w", encoding="utf-8") as file:
        file.write(RUN.format(**settings))
    return path


def turn(command, threads):
    """Runs a side as a process of its own: its milliseconds per step, and its largest resident size in MB."""
    names = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"]
    environment = os.environ | dict.fromkeys(names, str(threads))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, text=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in [output, errors]:
            file.seek(0)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{errors.read()}")
        found = json.loads(output.read().splitlines()[-1])
    return found, usage.ru_maxrss / 1e3


def ours(program, run, steps, threads, *sets):
    """A turn of ours."""
    sets = [word for one in sets for word in ["--set", one]]
    rounds = ["--rounds", "1", "--steps", str(steps), "--warmup", str(WARMUP)]
    found, resident = turn([program, "bench", run, "--report", "json", *rounds, *sets], threads)
    return 1e3 * found["step_seconds_median"], resident


def theirs(case, steps, threads, compiled):
    """A turn of PyTorch's."""
    side = ["--side", case, "--steps", str(steps), "--threads", str(threads)]
    found, resident = turn([sys.executable, __file__, *side, *(["--compiled"] if compiled else [])], threads)
    return found["ms_per_step"], resident


def torch_side(case, steps, threads, compiled):
    """Trains in PyTorch and prints the median time of a step."""
    import torch
    from torch import nn
    from torch.nn import functional

    layers, width, heads, vocabulary, rows, length, dtype = CASES[case]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    llama = is_llama(case)
    inner = (8 * width // 3 + 7) // 8 * 8 if llama else 4 * width

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = (lambda: nn.RMSNorm(width, eps=1e-6)) if llama else (lambda: nn.LayerNorm(width))
            self.norms = nn.ModuleList([norm(), norm()])
            self.joint = nn.Linear(width, 3 * width, bias=not llama)
            self.output = nn.Linear(width, width, bias=not llama)
            self.widen = nn.Linear(width, inner, bias=not llama)
            self.gate = nn.Linear(width, inner, bias=False) if llama else None
            self.narrow = nn.Linear(inner, width, bias=not llama)

        def forward(self, x, turns):
            split = self.joint(self.norms[0](x)).view(rows, length, 3, heads, width // heads)
            query, key, value = split.permute(2, 0, 3, 1, 4)
            if turns is not None:
                query, key = rotated(query, turns), rotated(key, turns)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, width))
            normed = self.norms[1](x)
            if self.gate is None:
                return x + self.narrow(functional.gelu(self.widen(normed)))
            return x + self.narrow(functional.silu(self.gate(normed)) * self.widen(normed))

    def rotated(x, turns):
        half = x.shape[-1] // 2
        cos, sin = turns
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = None if llama else nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.RMSNorm(width, eps=1e-6) if llama else nn.LayerNorm(width)
            # Ours are tied in both families.
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
            size = width // heads
            angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
            self.turns = (angles.cos(), angles.sin()) if llama else None

        def forward(self, ids, labels):
            x = self.tokens(ids)
            if self.positions is not None:
                x = x + self.positions.weight
            for block in self.blocks:
                x = block(x, self.turns)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    batches = torch.randint(vocabulary, (WARMUP + steps, rows, length + 1))
    times = []
    for batch in batches:
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - started)
    print(json.dumps({"ms_per_step": 1e3 * statistics.median(times[WARMUP:])}))


def spread(values):
    return f"{statistics.median(values):9.1f} ({min(values):.1f} to {max(values):.1f})"


def line(name, one, other):
    """Prints both sides of a comparison, and their ratio."""
    for what, at in [("ms/step", 0), ("resident MB", 1)]:
        left, right = ([turn[at] for turn in turns] for turns in [one, other])
        ratio = statistics.median(left) / statistics.median(right)
        print(f"{name:<22}{what:<13}{spread(left):<34}{spread(right):<34}{ratio:6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, *OWN], default=[*CASES, *OWN])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile")
    parser.add_argument("--firebrick")
    parser.add_argument("--side", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps, threads = options.steps, options.threads
    if options.side:
        return torch_side(options.side, steps, threads, options.compiled)
    program = options.firebrick or firebrick.build()
    print(f"{threads} threads, {options.pairs} pairs of {steps} steps: median (smallest to largest)")
    print(f"{'':<35}{'ours':>9}{'':<25}{'theirs':>9}{'':<25}{'ratio':>6}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            run = run_file(folder, OWN[case][0] if case in OWN else case)
            if case in OWN:
                turns = [
                    (ours(program, run, steps, threads, OWN[case][1]), ours(program, run, steps, threads))
                    for _ in range(options.pairs)
                ]
            else:
                # One turn each shows which of PyTorch's ways is the faster.
                ways = [False] if options.eager else [False, True]
                compiled = min(ways, key=lambda compiled: theirs(case, steps, threads, compiled)[0])
                turns = [
                    (ours(program, run, steps, threads), theirs(case, steps, threads, compiled))
                    for _ in range(options.pairs)
                ]
            line(case, *zip(*turns))


if __name__ == "__main__":
    main()
