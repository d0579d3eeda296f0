"""The fused optimizers beside Burn's and a copy, and then beside torch's, on the same machine and the same cores.

    python3 benches/fused_adamw_torch.py [cargo's options, as --profile dev]

Needs torch (`pip install torch`), and builds the Rust side with cargo, whose own table is printed first. Then both
sides hold 12 matrices of 2048 by 2048 in f32, with gradients that are there already, and make one update at a time,
taking turns; the fastest of 10 rounds counts, since other work on the machine only adds time. Which pages of memory a
side got changes its time by some percent for as long as it holds them, so 9 pairs of sides do this, each in memory of
its own. What is printed is a ratio, our time over torch's: the median pair's, and the range of all.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch

PAIRS = 9
ROUNDS = 10
MATRICES = 12
WIDTH = 2048


def build(options):
    command = ["cargo", "bench", "--workspace", "--bench", "fused_optimizers", "--no-run", *options]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command += ["--message-format", "json"]
    messages = subprocess.run(command, check=True, cwd=here, stdout=subprocess.PIPE, text=True).stdout
    found = [json.loads(line) for line in messages.splitlines()]
    return next(
        message["executable"]
        for message in found
        if message.get("target", {}).get("name") == "fused_optimizers" and message.get("executable")
    )


def torchs(make):
    """One update, and the seconds that it takes."""
    parameters = [torch.nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH)) for _ in range(MATRICES)]
    for parameter in parameters:
        parameter.grad = 0.1 * torch.randn(WIDTH, WIDTH)
    optimizer = make(parameters)

    def update():
        start = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - start

    return update


def ours(binary, name):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    process = subprocess.Popen([binary, "serve", name], **pipes)

    def update():
        process.stdin.write("\n")
        return float(process.stdout.readline())

    return process, update


def pair(binary, name, make):
    """The fastest update of both sides in memory that is new to them, torch's first."""
    process, our_update = ours(binary, name)
    sides = [torchs(make), our_update]
    best = [float("inf")] * 2
    for round in range(ROUNDS + 1):
        for side, update in enumerate(sides):
            # A side's threads spin for a while after its turn.
            time.sleep(0.1)
            took = update()
            if round > 0:
                best[side] = min(best[side], took)
    process.stdin.close()
    process.wait()
    return best


def main():
    binary = build(sys.argv[1:])
    subprocess.run([binary, "--bench"], check=True)
    threads = os.cpu_count()
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {MATRICES * WIDTH * WIDTH} parameters, {threads} threads")
    print(f"{'':<10}{'torch':>12}{'firebrick':>12}{'ratio':>8}{'of all pairs':>16}")
    rows = {
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True),
    }
    for name, make in rows.items():
        pairs = [pair(binary, name, make) for _ in range(PAIRS)]
        torch_ms, our_ms = (1e3 * statistics.median(times) for times in zip(*pairs))
        ratios = sorted(our / its for its, our in pairs)
        median, spread = statistics.median(ratios), f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name:<10}{torch_ms:>9.1f} ms{our_ms:>9.1f} ms{median:>8.2f}{spread:>16}", flush=True)


if __name__ == "__main__":
    main()
