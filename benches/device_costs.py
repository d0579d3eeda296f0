"""What a training step costs on a CUDA device, in counts that are the same on every machine: launches, waits, copies.

    python3 benches/device_costs.py --bin target/release/firebrick --stub FOLDER [--sm 80,90] [CASE ...]
    python3 benches/device_costs.py --bin target/release/firebrick --stub FOLDER --list bf16

No GPU is needed. The program, built with the feature `cuda`, runs on a CUDA driver that logs its calls instead of
computing. FOLDER has a program `with-stub`, which runs the command in its arguments with that driver, told by these
variables:

* CUSTUB_OUT: where it writes its totals when the program ends, as JSON: "name": [calls, bytes] for each kind of call
  (launch, graph_launch; stream_sync, event_sync, ctx_sync; htod, dtoh, and both with _pageable for memory that isn't
  pinned; dtod, peer, memset; alloc, alloc_async), and "kernels": {"name": {"launches": n, "blocks": n}};
* CUSTUB_TRACE, set with `--keep` alone: where it writes a line for each call, in order, which is for you to read:
  `launch NAME GRID BLOCK SHARED_BYTES`, `dtoh BYTES` and so on for copies, `event_sync 0` and so on for waits;
* CUSTUB_SM and CUSTUB_DEVICES: the compute capability (80 is an A100, 90 an H100), and the number of devices;
* CULTSTUB_LOG: where a stand-in for cuBLASLt adds a line for each product of matrices that the program asks it for;
* NVSHIM_LOG: where it adds a line of JSON for each kernel that the program compiles; NVSHIM_CACHE: where it keeps what
  NVRTC compiled, so that the next measurement takes seconds.

A step is the difference between two runs that differ by `--steps` steps, divided by these, so it needs no mark in the
log. A run before them fills the program's own cache (FIREBRICK_CACHE, new for each case). CubeCL's probes of the device's
speed repeat by the clock: their launches don't count, but a few waits of theirs may differ, so limits of waits and
copies allow a quarter. Counts of several ranks are those of one of them.

The model is a GPT of width 256 with 8 heads and a vocabulary of 1024, in micro-batches of 8 x 256 random tokens; `gpt2` and
`gpt2-12` are 6 and 12 layers of GPT-2, in micro-batches of 8 x 1,024. `compiled` are kernels that a first start compiles,
`seconds` what NVRTC takes for all of them and `slowest` for one (shown if the driver has kept none of them, as with a new
`--cache`), `tuned` the operations that it tunes, and `again` kernels that the second start compiles. If a limit is broken,
or a case fails, the exit status is 1 and the last lines say which:

* at most 24 launches and products a layer in bf16 (36 in f32, 68 in fp8, where each operand is rounded on its own), and 19
  besides (24 with GPT-2's chunks of logits and `Clip`), from 6 and 12 layers, and linear in layers (6, 9 and 12); with
  dropout, 20 more in 6 layers;
* a step of `gpt2-12` takes an H100 at most 26 ms by a model: each product by its operations at 550 TFLOP/s or its bytes at
  3.0 TB/s, attention at 200 TFLOP/s, each other kernel by the bytes that it moves, from the shapes, and 1 us for each
  launch. No kernel moves more than 1.5 times the bytes that it needs, each tensor read and written once; `--list gpt2-12`
  prints them;
* at most one wait, for a late read of two numbers, loss and norm (not where the host takes part: `offload`, and `zero2`,
  whose ranks exchange through the host's memory; with `dropout`, whose keys are uploaded, CubeCL also waits for a fence
  that it set many uploads before);
* 4 accumulated micro-batches launch at most 4 times what a step of one does;
* no allocation holds all scores of a GPT-2 of 12 heads (`gpt2-scores`) or all its logits (`gpt2-logits`) for 8 x 1024
  tokens, not even in half precision. CubeCL's probes of the device's bandwidth, of 1 GiB, don't count;
* the second start of a program compiles nothing;
* training in bf16 survives each candidate that CubeCL can try (`bf16-every`): on a device of compute capability 9.0, one
  that uses the tensor memory accelerator is refused by the driver, and ends the run if it is tried.
"""

import argparse
import collections
import glob
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import urllib.parse

import firebrick

# In f32, scores exist, and some ten launches compute them.
PER_LAYER = {"f32": 36, "bf16": 24, "gpt2": 24, "fp8": 68}
BESIDES, LINEAR = {"f32": 19, "bf16": 19, "gpt2": 24, "fp8": 19}, 0.01
# What dropout adds to a step of 6 layers: 3 launches a layer, and 2 at the embeddings.
DROPPED = 3 * 6 + 2
WAITS, COPIES, SLACK = 1, 2, 0.25
# Of an H100: operations and bytes a second, seconds between launches, and the limit of a step's milliseconds.
PRODUCTS, ATTENTION, MEMORY, GAP, MODELED = 550e12, 200e12, 3.0e12, 1e-6, 26
# Bytes that a kernel moves over those that it needs.
MOVED = 1.5
PROBE = 1 << 30
PROBES = re.compile("launch_overhead|throughput")
ROW = "{:<16}{:>4}{:>10}{:>10}{:>8}{:>9}{:>12}{:>11}{:>12}{:>11}{:>8}{:>10}{:>9}{:>9}{:>7}{:>7}"

# The values are not computed, so a run may end with this error, after all of its steps.
ENDED = "after the last update"

RUN = """(
    seed: 1,
    device: "cuda",
    data: (path: {data}, tokenizer: Characters, block: {block}, valid_fraction: 0.1),
    model: Gpt(layers: {layers}, heads: {heads}, width: {width}, dropout: {dropout}, bias: true, tied: true),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Constant(lr: 1e-3),
    batch: (micro: {micro}, accumulate: {accumulate}),
    steps: 1000,
    nccl: false,
    strategies: [{strategies}],
    output: {output},
)
"""

PLAIN = {"layers": 6, "heads": 8, "width": 256, "block": 256, "vocabulary": 1024, "micro": 8, "dropout": 0.0}
PLAIN |= {"accumulate": 1, "strategies": "", "ranks": 1, "host": False, "tries": "", "largest": None}
GPT2 = PLAIN | {"layers": 2, "heads": 12, "width": 768, "block": 1024}
CASES = {
    "f32": PLAIN,
    "f32-9": PLAIN | {"layers": 9},
    "f32-12": PLAIN | {"layers": 12},
    "bf16": PLAIN | {"strategies": "Amp(bf16)"},
    "bf16-9": PLAIN | {"strategies": "Amp(bf16)", "layers": 9},
    "bf16-12": PLAIN | {"strategies": "Amp(bf16)", "layers": 12},
    "clip": PLAIN | {"strategies": "Clip(norm: 1.0)"},
    "fp8": PLAIN | {"strategies": "Amp(fp8)"},
    "fp8-12": PLAIN | {"strategies": "Amp(fp8)", "layers": 12},
    "bf16-every": PLAIN | {"strategies": "Amp(bf16)", "tries": "every candidate"},
    "recompute": PLAIN | {"strategies": "Recompute(every: 1)"},
    "accumulate4": PLAIN | {"accumulate": 4},
    "dropout": PLAIN | {"dropout": 0.1},
    "offload": PLAIN | {"strategies": "Offload(optimizer)", "host": True},
    "zero2": PLAIN | {"strategies": "Zero(stage: 2)", "ranks": 2, "host": True},
    "gpt2": GPT2 | {"layers": 6, "vocabulary": 50304, "strategies": "Amp(bf16), Clip(norm: 1.0)"},
    "gpt2-12": GPT2 | {"layers": 12, "vocabulary": 50304, "strategies": "Amp(bf16), Clip(norm: 1.0)"},
    "gpt2-scores": GPT2 | {"largest": 8 * 12 * 1024 * 1024 * 2},
    "gpt2-logits": GPT2 | {"vocabulary": 50304, "largest": 8 * 1024 * 50304 * 2},
    "gpt2-logits-f16": GPT2 | {"vocabulary": 50304, "strategies": "Amp(f16)", "largest": 8 * 1024 * 50304 * 2},
}


class Failed(Exception):
    """A run that made no totals, or not all of its steps."""


def finished(command, environment, log, folder, limit):
    """Runs a process to its end: what it said, or None if it crashed before it said anything."""
    with open(log, "w", encoding="utf-8") as file:
        try:
            done = subprocess.run(command, env=environment, stdout=file, stderr=file, cwd=folder, timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {limit} s") from None
    with open(log, encoding="utf-8", errors="replace") as file:
        said = file.read()
    if done.returncode < 0 and not said:
        return None
    if done.returncode == 0 or ENDED in said:
        return said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if done.returncode > 0 and errors:
        raise Failed(errors[-1])
    raise Failed("\n".join([f"exit status {done.returncode}", *said.splitlines()[-8:]]))


def bench(case, steps, options, sm, folder, name):
    """The driver's totals of a run of so many steps, with its products, and the kernels that it compiled."""
    kinds = ["json", "log", "compiled", "products", "ron"]
    totals, log, compiled, products, run = (os.path.join(folder, f"{name}.{kind}") for kind in kinds)
    data, output = (firebrick.quoted(os.path.join(folder, file)) for file in ["tokens.txt", "run"])
    with open(run, "w", encoding="utf-8") as file:
        file.write(RUN.format(**case, data=data, output=output))
    environment = os.environ | {
        "CUSTUB_OUT": totals,
        "CUSTUB_DEVICES": str(case["ranks"]),
        "CUSTUB_SM": sm,
        "CULTSTUB_LOG": products,
        "NVSHIM_LOG": compiled,
        "NVSHIM_CACHE": options.cache,
        "FIREBRICK_CACHE": os.path.join(folder, "cache"),
    }
    if case["tries"]:
        # CubeCL then tries every candidate for a product, where it otherwise stops at one that is fast enough.
        environment["CUBECL_AUTOTUNE_SHORT_CIRCUIT"] = "0"
    if options.keep or case["largest"]:
        environment["CUSTUB_TRACE"] = os.path.join(folder, f"{name}.trace")
    command = [os.path.join(options.stub, "with-stub"), options.bin, "bench", run, "--device", "cuda"]
    command += ["--ranks", str(case["ranks"]), "--rounds", "1", "--warmup", "4", "--steps", str(steps)]
    # A driver with threads may crash where a program unloads it at once, having looked for devices.
    for _ in range(3):
        if finished(command, environment, log, folder, options.limit):
            break
    else:
        raise Failed("it crashed three times before it said anything")
    try:
        with open(totals, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise Failed(f"the driver left no totals: {error}") from None
    found["products"] = collections.Counter(lines_of(products))
    return found, [json.loads(line) for line in lines_of(compiled)]


def lines_of(path):
    """The lines of a file; none if it does not exist."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.readlines()


def measure(case, options, sm, folder):
    """What a step of a case costs one rank."""
    os.makedirs(folder)
    with open(os.path.join(folder, "tokens.txt"), "w", encoding="utf-8") as file:
        letters = [chr(0x20000 + at) for at in range(case["vocabulary"] - 1)]  # the data have one token more than letters
        file.write("".join(letters) + "".join(random.Random(1).choices(letters, k=200_000)))
    _, first = bench(case, 2, options, sm, folder, "first")
    less, compiled = bench(case, 2, options, sm, folder, "second")
    more, _ = bench(case, 2 + options.steps, options, sm, folder, "longer")
    over = options.steps * case["ranks"]

    def rate(*names, at=0):
        return sum(more.get(name, [0, 0])[at] - less.get(name, [0, 0])[at] for name in names) / over

    none = {"launches": 0, "blocks": 0}
    kernels = {}
    for name in less["kernels"] | more["kernels"]:
        before, after = (totals["kernels"].get(name, none) for totals in [less, more])
        launches, blocks = (after[key] - before[key] for key in ["launches", "blocks"])
        if launches and not PROBES.search(name):
            kernels[name] = (launches / over, blocks / launches)
    launches = sum(count for count, _ in kernels.values()) + rate("graph_launch")
    if launches < 1:
        raise Failed(f"{options.steps} more steps launched {launches * over:.0f} more kernels")
    to_host, to_device = ["dtoh", "dtoh_pageable"], ["htod", "htod_pageable"]
    return {
        "launches": launches,
        "products": (more["products"].total() - less["products"].total()) / over,
        "product_calls": [
            [json.loads(line), count / over] for line, count in (more["products"] - less["products"]).items()
        ],
        # A copy to memory that isn't pinned blocks.
        "waits": rate("stream_sync", "event_sync", "ctx_sync", "dtoh_pageable"),
        "to_host": rate(*to_host),
        "to_host_bytes": rate(*to_host, at=1),
        "to_device": rate(*to_device),
        "to_device_bytes": rate(*to_device, at=1),
        "on_device": rate("dtod", "peer", "memset"),
        "allocations": rate("alloc", "alloc_async"),
        "compiled": len(first),
        "compile_seconds": seconds_of(first),
        "tuned": tuned(os.path.join(folder, "cache")),
        "compiled_again": len(compiled),
        "largest": largest(os.path.join(folder, "longer.trace")) if case["largest"] else None,
        "kernels": kernels,
    }


def seconds_of(compiled):
    """NVRTC's seconds for all kernels and for the slowest one, or None if the driver had kept some from earlier."""
    if any(kernel["cached"] for kernel in compiled):
        return None
    seconds = [kernel["seconds"] for kernel in compiled]
    return [sum(seconds), max(seconds, default=0)]


def tuned(cache):
    """The operations that the program's cache has tuning results of: CubeCL keeps them in SQLite files."""
    count = 0
    for file in glob.glob(os.path.join(glob.escape(cache), "*.db")):
        database = sqlite3.connect(f"file:{urllib.parse.quote(file)}?mode=ro", uri=True)
        try:
            query = "SELECT count(*) FROM entries WHERE namespace LIKE 'autotune%'"
            count += database.execute(query).fetchone()[0]
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise Failed(f"{file}: {error}") from None
        finally:
            database.close()
    return count


def largest(trace):
    """The bytes of the largest allocation on the device, without those of CubeCL's probes."""
    with open(trace, encoding="utf-8") as file:
        sizes = [int(line.split()[1]) for line in file if line.startswith(("alloc ", "alloc_async "))]
    return max((size for size in sizes if size != PROBE), default=0)


def moved(name, blocks, case):
    """The bytes that a launch of a kernel moves, and those that it needs: each tensor read and written once.

    None for kernels of one number. Raises KeyError for a kernel that isn't known.
    """
    rows, width, half, wide = case["micro"] * case["block"], case["width"], 2, 4
    tensor = rows * width * half
    # Of the passes over lists of tensors, whose blocks have 4096 elements: bytes moved and needed for each element.
    listed = {
        # The norm reads gradients as the backward pass left them, and clipping widens them.
        "squares": (half, half),
        "scale": (half + wide, half + wide),
        # Parameter and moments in f32, the gradient in f32, and the replica.
        "update": (7 * wide + half, 7 * wide + half),
    }
    kind = name.removeprefix("kernel_").split("_")[0]
    if kind in listed:
        return tuple(blocks * 4096 * each for each in listed[kind])
    if blocks <= 1:
        return None
    elements = re.search(r"_n_(\d+)", name)
    elements = blocks * 256 * int(elements.group(1)) if elements else 0
    size = half if "_c_bf16" in name or "_e_bf16" in name else wide
    tables = (case["vocabulary"] + case["block"]) * width * half
    rules = {
        # With the residual sum: two tensors read and two written.
        "forward": (4 * tensor, 4 * tensor),
        # The norm's input, two gradients, the new one, and the sums of each block over its rows.
        "backward": (4 * tensor + blocks * 2 * width * wide, 4 * tensor),
        "added": (512 * 2 * width * wide, 512 * 2 * width * wide),
        "value": (2 * 4 * tensor, 2 * 4 * tensor),
        "gradient": (3 * 4 * tensor, 3 * 4 * tensor),
        # Logits are read twice, and the gradient takes their place.
        "losses": (3 * blocks * case["vocabulary"] * half, 2 * blocks * case["vocabulary"] * half),
        # The ids of tokens and positions, from the cache after the first block, and their places in order of their rows.
        "sort": (2 * 2 * 4 * rows, 2 * 2 * 4 * rows),
        # The gradients are read for each of the two tables, with their places.
        "rows": (2 * tensor + tables + 2 * 2 * 4 * rows, tensor + tables + 2 * 2 * 4 * rows),
        # Rows of two tables.
        "pairs": (3 * tensor, 3 * tensor),
        "binop": (3 * elements * size, 3 * elements * size),
    }
    return rules[kind]


def modeled(found, case):
    """Seconds of a step on an H100, and a line for each kernel: seconds, launches, bytes moved and needed.

    Raises KeyError for a kernel whose bytes aren't known.
    """
    lines, total = [], 0.0
    for call, count in found["product_calls"]:
        m, n, k = call["m"], call["n"], call["k"]
        sizes = [4 if kind == 0 else 2 for kind in call["types"]]
        bytes_moved = m * k * sizes[0] + k * n * sizes[1] + m * n * sizes[3] * (2 if call["beta"] else 1)
        seconds = call["batch"] * max(2 * m * n * k / PRODUCTS, bytes_moved / MEMORY)
        lines.append((count * seconds, count, None, f"product {m} x {k} x {n}"))
    # A product of a causal head: half of all scores, a multiplication and an addition each.
    product = case["micro"] * case["width"] * case["block"] ** 2
    for name, (count, blocks) in found["kernels"].items():
        if name.startswith("attention_"):
            products = {"attention_forward": 2, "attention_of_queries": 3, "attention_of_keys": 4}
            seconds = products[re.match("attention(_of)?_[a-z]+", name).group()] * product / ATTENTION
            lines.append((count * seconds, count, None, name))
            continue
        each = moved(name, blocks, case)
        lines.append((count * each[0] / MEMORY if each else 0.0, count, each, name))
    total = sum(seconds + count * GAP for seconds, count, _, _ in lines)
    return total, sorted(lines, key=lambda line: (-line[0], line[3]))


def by_kind(found):
    """Launches by the kernels' names without the hash that ends them."""
    kinds = collections.Counter()
    for name, (launches, _) in found["kernels"].items():
        kinds[re.sub("_[0-9a-f]{8}$", "", name)] += launches
    return kinds


def check(results, sm):
    """A line about each limit that is measured, and whether it holds."""
    for dtype in PER_LAYER:
        names = [dtype, f"{dtype}-9", f"{dtype}-12"]
        # A product by a library is a launch too.
        counts = [results.get(name) for name in names]
        six, nine, twelve = (count and count["launches"] + count["products"] for count in counts)
        if six and twelve:
            layer = (twelve - six) / 6
            rest = six - 6 * layer
            most = PER_LAYER[dtype]
            holds = round(layer, 1) <= most and round(rest, 1) <= BESIDES[dtype]
            yield holds, f"{dtype}: {layer:.1f} launches a layer (limit {most}) and {rest:.1f} besides ({BESIDES[dtype]})"
        if six and nine and twelve:
            middle = (six + twelve) / 2
            holds = abs(nine - middle) <= LINEAR * middle
            yield holds, f"{dtype}: {nine:.1f} launches with 9 layers, {middle:.1f} on the line between 6 and 12 layers"
    for name, found in results.items():
        if not CASES[name]["host"] and not CASES[name]["dropout"]:
            holds = found["waits"] <= WAITS + SLACK and found["to_host"] <= COPIES + SLACK
            yield holds, (
                f"{name}: {found['waits']:.1f} waits (limit {WAITS}) and {found['to_host']:.1f} copies to the host ({COPIES})"
            )
        again = found["compiled_again"]
        yield again == 0, f"{name}: the second start compiles {again} kernels (limit 0)"
        if CASES[name]["largest"]:
            of_all = CASES[name]["largest"]
            holds = found["largest"] < of_all
            yield holds, f"{name}: the largest allocation has {found['largest']:,} bytes (below {of_all:,})"
    if "gpt2-12" in results:
        try:
            seconds, lines = modeled(results["gpt2-12"], CASES["gpt2-12"])
            holds = seconds * 1e3 <= MODELED
            yield holds, f"gpt2-12: a step takes {seconds * 1e3:.1f} ms by the model of an H100 (limit {MODELED})"
            most, name = max((each[0] / each[1], name) for _, _, each, name in lines if each)
            yield most <= MOVED, f"gpt2-12: a kernel moves at most {most:.2f} times the bytes it needs (limit {MOVED}): {name}"
        except KeyError as error:
            yield False, f"gpt2-12: the model knows no kernel {error}"
    if "f32" in results and "dropout" in results:
        more = results["dropout"]["launches"] + results["dropout"]["products"] - results["f32"]["launches"] - results["f32"]["products"]
        yield more <= DROPPED, f"dropout: {more:.1f} launches more than without (limit {DROPPED})"
    if "f32" in results and "accumulate4" in results:
        ratio = results["accumulate4"]["launches"] / results["f32"]["launches"]
        yield round(ratio, 2) <= 4, f"accumulate4: launches of {ratio:.2f} steps of one micro-batch (limit 4)"


def row(name, sm, found):
    """A line of the table."""
    counts = [found[key] for key in ["launches", "waits", "to_host", "to_host_bytes", "to_device", "to_device_bytes"]]
    launches, waits, to_host, host_bytes, to_device, device_bytes = counts
    print(
        ROW.format(
            name,
            sm,
            f"{launches:.1f}",
            f"{found['products']:.1f}",
            f"{waits:.1f}",
            f"{to_host:.1f}",
            f"{host_bytes:,.0f}",
            f"{to_device:.1f}",
            f"{device_bytes:,.0f}",
            f"{found['on_device']:.1f}",
            f"{found['allocations']:.1f}",
            found["compiled"],
            *(["-", "-"] if found["compile_seconds"] is None else [f"{value:.1f}" for value in found["compile_seconds"]]),
            found["tuned"],
            found["compiled_again"],
        ),
        flush=True,
    )


def list_kernels(found, name_of_case):
    """Prints the kernels of a step, those with the most launches first."""
    print(f"{'launches':>10}  {'blocks each':>12}  kernel")
    for name, (launches, blocks) in sorted(found["kernels"].items(), key=lambda entry: (-entry[1][0], entry[0])):
        print(f"{launches:10.2f}  {blocks:12,.0f}  {name}")
    print("\nby kind")
    for name, launches in by_kind(found).most_common():
        print(f"{launches:10.2f}  {name}")
    if name_of_case != "gpt2-12":
        return
    seconds, lines = modeled(found, CASES[name_of_case])
    print(f"\nby the model of an H100, {seconds * 1e3:.1f} ms a step\n{'us':>8}  {'launches':>8}  {'MB':>8}  {'needed':>8}  ratio")
    for each, launches, bytes_of, name in lines:
        sizes = "" if bytes_of is None else "{:8.1f}  {:8.1f}  {:5.2f}".format(
            bytes_of[0] / 1e6, bytes_of[1] / 1e6, bytes_of[0] / bytes_of[1]
        )
        print(f"{each * 1e6:8.1f}  {launches:8.2f}  {sizes:25}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the program, built with the feature cuda")
    parser.add_argument("--stub", required=True, help="the folder of with-stub, a CUDA driver that logs its calls")
    parser.add_argument("--sm", default="90", help="compute capabilities, such as 80,90 (default: 90)")
    parser.add_argument("--steps", type=int, default=64, help="steps by which the two runs differ (default: 64)")
    parser.add_argument("--limit", type=int, default=1800, help="seconds after which a run has failed (default: 1800)")
    parser.add_argument("--list", choices=CASES, metavar="CASE", help="print the kernels of a case instead")
    parser.add_argument("--json", metavar="FILE", help="write all counts there too")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the totals, messages and logs of all runs in a new folder")
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        default=os.path.join(tempfile.gettempdir(), "firebrick-compiled"),
        help="where the driver keeps compiled kernels (default: %(default)s)",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all, or some of {', '.join(CASES)}")
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    if options.keep and os.path.exists(options.keep):
        parser.error(f"{options.keep} exists")
    for name in ["bin", "stub", "cache"]:
        setattr(options, name, os.path.abspath(getattr(options, name)))
    os.makedirs(options.cache, exist_ok=True)
    capabilities = options.sm.split(",")
    cases = [options.list] if options.list else options.cases or list(CASES)

    broken, everything = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        if not options.list:
            heads = "case sm launches products waits to-host bytes to-device bytes on-device allocs compiled seconds slowest tuned again"
            print(ROW.format(*heads.split()))
        lines = []
        for sm in capabilities:
            results = everything[sm] = {}
            for name in cases:
                folder = os.path.join(os.path.abspath(options.keep or temporary), f"{name}-{sm}")
                try:
                    results[name] = measure(CASES[name], options, sm, folder)
                except Failed as error:
                    broken.append(f"sm {sm}, {name}: failed: {error}")
                    print(broken[-1], flush=True)
                    continue
                if options.list:
                    print(f"sm {sm}, {name}: {results[name]['launches']:.1f} launches a step")
                    list_kernels(results[name], name)
                else:
                    row(name, sm, results[name])
            if not options.list:
                lines += [(holds, f"sm {sm}, {line}") for holds, line in check(results, sm)]
        broken += [f"broken: {line}" for holds, line in lines if not holds]
        print("".join(f"\nholds: {line}" for holds, line in lines if holds))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
