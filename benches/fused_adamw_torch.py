"""The fused optimizers beside torch's, on the same machine and the same cores, in turns.

    python3 benches/fused_adamw_torch.py [cargo's options, as --profile dev]

Needs torch (`pip install torch`), and builds the Rust side with cargo. Both sides hold 12 matrices of
2048 by 2048 in f32, with gradients that are there already, and make one update at a time, taking turns;
the fastest of 20 rounds counts, since other work on the machine only adds time. What is printed is a ratio: our
time over torch's.
"""

import json
import os
import subprocess
import sys
import time

import torch

ROUNDS = 20
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


def main():
    binary = build(sys.argv[1:])
    threads = os.cpu_count()
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {MATRICES * WIDTH * WIDTH} parameters, {threads} threads")
    print(f"{'':<20}{'torch':>12}{'firebrick':>12}{'ratio':>8}")
    rows = {
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True),
    }
    for name, make in rows.items():
        process, our_update = ours(binary, name)
        sides = [torchs(make), our_update]
        best = [float("inf")] * 2
        for round in range(ROUNDS + 1):
            for side, update in enumerate(sides):
                # A side's threads wait busily for a while after its turn.
                time.sleep(0.1)
                took = update()
                if round > 0:
                    best[side] = min(best[side], took)
        process.stdin.close()
        process.wait()
        print(f"{name:<20}{best[0] * 1e3:>9.1f} ms{best[1] * 1e3:>9.1f} ms{best[1] / best[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
