"""Products of the layers of a GPT beside torch's, in f32, on the same machine and the same cores.

    python3 benches/products_torch.py [WIDTH ...] [--rounds 3] [--threads N]

Needs torch (`pip install torch`), and builds the Rust side with cargo. For each width (256, 384, 768 and 1024 if none are
named), the bench `products` of `firebrick-kernels` and torch take turns: over 2,048 rows, each layer's product x . w, and
the two of its gradients, g . wT and xT . g. Printed are the GFLOP/s of both, each the median over the rounds of the median
time, and ours over torch's.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch

ROWS = 2048
PRODUCTS = {
    "x . w": lambda x, w, g: x @ w,
    "g . wT": lambda x, w, g: g @ w.T,
    "xT . g": lambda x, w, g: x.T @ g,
}


def ours(width, threads):
    """GFLOP/s by layer and product."""
    command = ["cargo", "bench", "-p", "firebrick-kernels", "--bench", "products", "--", str(width)]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    text = subprocess.run(command, check=True, cwd=here, env=environment, stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    lines = [line for line in lines if line.get("product") in PRODUCTS and line["dtype"] == "F32"]
    return {(line["in"], line["out"], line["product"]): line["gflop"] / line["seconds"] for line in lines}


def torchs(shapes):
    """The same of torch."""
    found = {}
    for width, out, name in shapes:
        x, w, g = torch.randn(ROWS, width), torch.randn(width, out), torch.randn(ROWS, out)
        seconds = []
        for _ in range(31):
            start = time.perf_counter()
            PRODUCTS[name](x, w, g)
            seconds.append(time.perf_counter() - start)
        found[width, out, name] = 2e-9 * ROWS * width * out / statistics.median(seconds)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("widths", type=int, nargs="*", default=[256, 384, 768, 1024], metavar="WIDTH")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'in':>6} {'out':>6}  {'product':<8} {'GFLOP/s':>8} {'torch':>8} {'ratio':>6}", flush=True)
    for width in options.widths:
        rounds = []
        for _ in range(options.rounds):
            found = ours(width, options.threads)
            rounds.append((found, torchs(found)))
        for shape in rounds[0][0]:
            mine, other = (statistics.median(side[shape] for side in sides) for sides in zip(*rounds))
            print(f"{shape[0]:>6} {shape[1]:>6}  {shape[2]:<8} {mine:>8.0f} {other:>8.0f} {mine / other:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
