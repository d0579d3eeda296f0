"""Everything worth knowing about firebrick on one GPU, as one Markdown table, in under 25 minutes.

    python3 benches/on_gpu.py --bin target/release/firebrick [--products PROGRAM] [--attention PROGRAM] [--tests target/debug/deps] [--out gpu.md]
    python3 benches/on_gpu.py --bin target/release/firebrick --device cpu --quick     # tries the script, in a minute or two

Needs a program that is built (`cargo build --release --features cuda`) and torch (`pip install torch`). The sections
below have a time limit each; what fails or finds no time is a row that says so, and the next section runs. `--sections`
selects some, and `--minutes` stretches all limits. The table grows in the file `--out` while the script runs.

* check: `firebrick devices --check`: each kernel of ours against the CPU, with its speed.
* products: products of matrices as GPT-2 has them, by shape and dtype: ours, CubeCL's and torch's, in TFLOP/s. PROGRAM is what
  `cargo bench -p firebrick-kernels --features cuda --bench products --no-run` builds.
* attention: forward, and with its gradients: ours, the one composed of products, and torch's `scaled_dot_product_attention`,
  of GPT-2, of longer rows, and of a length that no tile divides. PROGRAM is what `--bench attention` builds likewise.
* tests: the test programs of a folder (`cargo test --workspace --features cuda --no-run` builds them into
  `target/debug/deps`; the newest of each counts) with BURN_DEVICE set, from the folders of their packages in this checkout.
* speed: GPT-2 with 124 million parameters, in rows of 1,024 tokens, beside nanoGPT's model in PyTorch (compiled, with
  its own attention and fused AdamW, bf16 by autocast, TF32 in f32), in turns. Both sides clip to a norm of 1 and draw
  random tokens. Tokens per second are those of the median step of firebrick, and of the mean step of PyTorch, which
  waits only at the end; both without warmup. MFU counts 6 x parameters + 12 x layers x width x block operations a token
  (recomputed ones don't count) over the device's peak in bf16, or in TF32 for f32. Memory is the highest that nvidia-smi
  shows; a process is asked each second.
* memory: the same model for 300 steps, and its memory at steps 50 and 300 (https://github.com/tracel-ai/burn/issues/5212).
* kernels: seconds of a step by kernel, from Nsight Systems (`nsys`), if it is there.
* largest: the most layers of width 2048 that train with rows of 1 x 1,024 tokens, by strategy: doubled while they fit,
  then bisected. Where time runs out, the row has the most that fitted and the fewest that did not.
"""

import argparse
import contextlib
import datetime
import glob
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import firebrick

# Seconds of each section.
SECTIONS = {"check": 70, "products": 90, "attention": 90, "speed": 420, "kernels": 90, "memory": 120, "tests": 270, "largest": 270}

GPT2 = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50304, "block": 1024}
WIDE = {"heads": 16, "width": 2048, "vocabulary": 50304, "block": 1024, "micro": 1}
TINY = {"layers": 2, "heads": 2, "width": 32, "vocabulary": 200, "block": 32}

# name: strategies of firebrick, and what the PyTorch side does; None where it has nothing alike.
SPEEDS = {
    "bf16": ("Amp(bf16)", {"dtype": "bf16"}),
    "f32": ("", {"dtype": "f32"}),
    "bf16, recompute": ("Amp(bf16), Recompute(every: 1)", {"dtype": "bf16", "recompute": True}),
    "bf16, offload": ("Offload(optimizer), Amp(bf16)", None),
}
STRATEGIES = {
    "plain": "",
    "Amp": "Amp(bf16)",
    "Amp, Recompute": "Amp(bf16), Recompute(every: 1)",
    "Amp, Recompute, Offload": "Offload(optimizer), Amp(bf16), Recompute(every: 1)",
}

# Dense peaks of tensor cores, in TFLOP/s: bf16 with sums in f32, and TF32. The first that matches the name counts.
PEAKS = [
    (r"B200", 2250, 1100),
    (r"H200|H100 80GB HBM3|GH200", 989, 494),
    (r"H100 NVL", 835, 417),
    (r"H100", 756, 378),
    (r"A100", 312, 156),
    (r"A40\b", 150, 75),
    (r"A30\b", 165, 82),
    (r"A10G", 70, 35),
    (r"A10\b", 125, 62),
    (r"L40S", 362, 183),
    (r"L4\b", 121, 60),
    (r"RTX 5090", 210, 105),
    (r"RTX 4090", 165, 83),
    (r"RTX 3090", 71, 36),
]

RUN = """(
    seed: 1,
    device: "{device}",
    data: (path: {train}, valid: {valid}, tokenizer: Characters, block: {block}),
    model: Gpt(layers: {layers}, heads: {heads}, width: {width}, bias: true, tied: true),
    optimizer: AdamW(betas: (0.9, 0.95), weight_decay: 0.1),
    schedule: Constant(lr: 1e-4),
    batch: (micro: {micro}),
    steps: {steps},
    evaluate_every: 1000000, // at the end alone
    strategies: [{strategies}],
    {more}
    output: {output},
)
"""


class Failed(Exception):
    """Why something has no result, in a line."""


# The PyTorch side, in its own process.


def torch_side(case):
    """Trains nanoGPT's model, and prints seconds of a step, the number of parameters and the allocator's peak."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    device, width, heads = torch.device(case["device"]), case["width"], case["heads"]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")

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
            self.tokens = nn.Embedding(case["vocabulary"], width)
            self.positions = nn.Embedding(case["block"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(case["layers"]))
            self.norm = nn.LayerNorm(width)
            for weight in [self.tokens.weight, self.positions.weight]:
                nn.init.normal_(weight, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.positions.weight
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if case.get("recompute") else block(x)
            logits = self.norm(x) @ self.tokens.weight.T
            return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    with device:
        model = Gpt()
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if case["compile"] else model
    cast = torch.autocast(device.type, torch.bfloat16) if case["dtype"] == "bf16" else contextlib.nullcontext()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def step():
        rows = torch.randint(case["vocabulary"], (case["micro"], case["block"] + 1), device=device)
        with cast:
            loss = run(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(case["warmup"]):
        step()
    wait()
    started = time.perf_counter()
    for _ in range(case["steps"]):
        step()
    wait()
    seconds = (time.perf_counter() - started) / case["steps"]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    parameters = sum(weight.numel() for weight in model.parameters())
    print(json.dumps({"seconds": seconds, "parameters": parameters, "peak": peak}))


def torch_products(case):
    """Computes products, and prints a line with the seconds of each."""
    import torch

    torch.set_float32_matmul_precision("high")
    for product in case["found"]:
        dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[product["dtype"]]
        make = lambda *shape: torch.rand(shape, device=case["device"], dtype=torch.float32).to(dtype)
        x, weight, grad = (make(*shape) for shape in operands(product))
        lhs, rhs = {"x . w": (x, weight), "g . wT": (grad, weight.T), "xT . g": (x.T, grad)}[product["product"]]
        repeated = round(product["gflop"] * 1e9 / flop(product))
        seconds = []
        for _ in range(7):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(repeated):
                lhs @ rhs
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        print(json.dumps({"seconds": statistics.median(seconds)}), flush=True)


def torch_attention(case):
    """Computes causal attentions, and prints a line with the seconds of each."""
    import torch

    for attention in case["found"]:
        dtype = {"BF16": torch.bfloat16, "F16": torch.float16}[attention["dtype"]]
        batch, heads, length, size = attention["shape"]
        make = lambda: torch.randn((batch, length, heads, size), device=case["device"]).to(dtype).transpose(1, 2)
        leaves = [make().requires_grad_(attention["backward"]) for _ in range(3)]
        grad = torch.ones_like(leaves[0])
        seconds = []
        for _ in range(7):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(attention["repeated"]):
                found = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
                if attention["backward"]:
                    torch.autograd.grad(found, leaves, grad)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        print(json.dumps({"seconds": statistics.median(seconds)}), flush=True)


def operands(product):
    """The shapes of activations, weight and gradient."""
    rows, inner, outer = product["rows"], product["in"], product["out"]
    return (rows, inner), (inner, outer), (rows, outer)


def flop(product):
    return 2 * product["rows"] * product["in"] * product["out"]


# Processes, and the memory that they use.


def answer(*command):
    """The lines that a tool prints; none if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def first_number(text):
    found = re.search(r"\d+(\.\d+)?", text)
    return float(found.group()) if found else None


class Machine:
    """The device, and who uses how much of its memory."""

    def __init__(self, device):
        self.device, self.cuda = device, device.startswith("cuda")
        self.index = device.partition(":")[2] or "0"
        self.name = (self.smi("gpu", "name") or ["GPU without nvidia-smi"])[0] if self.cuda else "CPU"

    def smi(self, what, fields):
        return answer("nvidia-smi", "-i", self.index, f"--query-{what}={fields}", "--format=csv,noheader,nounits")

    def used(self):
        """MiB in use on the device, or None."""
        return first_number((self.smi("gpu", "memory.used") or [""])[0]) if self.cuda else 0.0

    def of(self, pid, before):
        """MiB that a process uses, or None. In a container nvidia-smi hides processes, so all that is new counts."""
        if not self.cuda:
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                    return next((first_number(line) / 1024 for line in file if line.startswith("VmRSS")), None)
            return None
        for line in self.smi("compute-apps", "pid,used_memory"):
            owner, _, memory = line.partition(",")
            if owner.strip() == str(pid) and first_number(memory) is not None:
                return first_number(memory)
        now = self.used()
        return None if now is None or before is None else now - before

    def total(self):
        """MiB of the device, or None."""
        return first_number((self.smi("gpu", "memory.total") or [""])[0]) if self.cuda else None


def host_is_full():
    """Whether less than a twentieth of the host's memory is left."""
    with contextlib.suppress(OSError, KeyError):
        with open("/proc/meminfo", encoding="utf-8") as file:
            kib = {line.split(":")[0]: first_number(line) for line in file}
        return kib["MemAvailable"] < kib["MemTotal"] / 20
    return False


def kill(process):
    """Ends a process of ours and its children, whose group has its number."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Ended:
    """A process that ran to its end or to its limit: what it said, and samples of (seconds, MiB)."""

    def __init__(self, machine, command, limit, environment=None, folder=None, interval=1.0, watch=None):
        self.samples, self.why = [], None
        if limit < 5:
            raise Failed("no time left")
        before = machine.used()
        with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=errors,
                cwd=folder,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )
            started, done = time.monotonic(), threading.Event()

            def sample():
                while not done.wait(interval):
                    memory = machine.of(process.pid, before)
                    if memory is not None:
                        self.samples.append((time.monotonic() - started, memory))
                    if watch:
                        watch(memory)
                    if host_is_full():
                        self.why = "the host's memory is full"
                        kill(process)

            sampler = threading.Thread(target=sample, daemon=True)
            sampler.start()
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                self.why = f"no end after {limit:.0f} s"
            finally:
                done.set()
                sampler.join(30)
                if process.poll() is None:
                    kill(process)
                    process.wait()
            self.seconds = time.monotonic() - started
            out.seek(0)
            errors.seek(0)
            self.out, self.errors, self.status = out.read(), errors.read(), process.returncode
        if self.why is None and self.status != 0:
            lines = [line.strip() for line in self.errors.splitlines() if line.strip()] or [f"exit status {self.status}"]
            telling = [line for line in lines if re.search(r"out of memory|panicked|error", line, re.IGNORECASE)]
            self.why = (telling or lines)[-1][:200]

    def peak(self):
        """The most MiB seen, or None."""
        return max((memory for _, memory in self.samples), default=None)

    def json(self):
        """The last line of what it printed that is JSON."""
        if self.why:
            raise Failed(self.why)
        for line in reversed(self.out.splitlines()):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
        raise Failed("it printed no JSON")


# The table.


def number(value, form="{:,.0f}", unit=""):
    return "" if value is None else form.format(value) + unit


class Table:
    def __init__(self, path, heading):
        self.path, self.lines = path, [
            heading,
            "",
            "| section | what | firebrick | PyTorch | ratio | notes |",
            "|---|---|---|---|---|---|",
        ]

    def row(self, section, what, ours="", theirs="", ratio="", notes=""):
        cells = [str(cell).replace("|", "/").replace("\n", " ") for cell in [section, what, ours, theirs, ratio, notes]]
        self.lines.append(f"| {' | '.join(cells)} |")
        print(self.lines[-1], file=sys.stderr, flush=True)
        self.write()

    def write(self):
        if self.path:
            with open(self.path, "w", encoding="utf-8") as file:
                file.write("\n".join(self.lines) + "\n")


class Bench:
    """What all sections share."""

    def __init__(self, options, machine, table, folder):
        self.options, self.machine, self.table, self.folder = options, machine, table, folder
        self.model = dict(TINY if options.quick else GPT2, micro=options.micro)
        self.interval = 1.0 if machine.cuda else 0.02
        self.until = 0.0

    def left(self):
        return self.until - time.monotonic()

    def run_file(self, model, strategies, steps, more=""):
        """Writes a run and its data: random tokens, each a letter beyond the basic plane."""
        train, valid = (os.path.join(self.folder, f"{name}-{model['vocabulary']}.txt") for name in ["train", "valid"])
        if not os.path.exists(train):
            letters = [chr(0x20000 + at) for at in range(model["vocabulary"] - 1)]  # and one token for all others
            draw = random.Random(1)
            with open(valid, "w", encoding="utf-8") as file:
                file.write("".join(draw.choices(letters, k=model["block"] + 1)))
            with open(train, "w", encoding="utf-8") as file:
                file.write("".join(letters) + "".join(draw.choices(letters, k=64 * model["micro"] * model["block"])))
        path = os.path.join(self.folder, "run.ron")
        names = {"train": train, "valid": valid, "output": os.path.join(self.folder, "run")}
        names = {name: firebrick.quoted(file) for name, file in names.items()}
        what = {"device": self.machine.device, "strategies": strategies, "steps": steps, "more": more}
        with open(path, "w", encoding="utf-8") as file:
            file.write(RUN.format(**model, **names, **what))
        return path

    def command(self, model, strategies, warmup, steps, more=""):
        run = self.run_file(model, strategies, steps + warmup, more)
        counts = ["--rounds", "1", "--warmup", str(warmup), "--steps", str(steps)]
        return [self.options.bin, "bench", run, *counts, "--report", "json", "--device", self.machine.device]

    def process(self, command, limit, **more):
        return Ended(self.machine, command, min(limit, self.left()), **({"interval": self.interval} | more))

    # Sections.

    def tests(self):
        if not self.options.tests:
            return self.table.row("tests", "", notes="left out: --tests names no folder")
        programs = test_programs(self.options.tests)
        if not programs:
            raise Failed(f"no test programs in {self.options.tests}")
        for at, (program, package, name) in enumerate(programs):
            # Twice a fair share of the time, since most programs end early.
            limit = 2 * self.left() / (len(programs) - at)
            what = f"{os.path.relpath(package, HOME)}: {name}".replace(".: ", "")
            environment = {"BURN_DEVICE": self.machine.device, "CARGO_MANIFEST_DIR": package}
            try:
                ended = self.process([program], limit, environment=environment, folder=package, interval=5.0)
            except Failed as error:
                self.table.row("tests", what, notes=error)
                continue
            results = re.findall(r"^test (.+?) \.\.\. (ok|FAILED|ignored)", ended.out, re.MULTILINE)
            counts = {kind: sum(1 for _, result in results if result == kind) for kind in ["ok", "FAILED", "ignored"]}
            failed = [test for test, result in results if result == "FAILED"]
            notes = f"{ended.seconds:.0f} s"
            if failed:
                notes += f"; failed: {', '.join(failed[:5])}{', ...' if len(failed) > 5 else ''}"
            if ended.why and (not failed or ended.status < 0):
                notes += f"; {ended.why}"
            self.table.row(
                "tests",
                what,
                f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['ignored']} ignored",
                notes=notes,
            )

    def ours(self, model, strategies, warmup, steps, limit):
        ended = self.process(self.command(model, f"{strategies}, Clip(norm: 1.0)".lstrip(", "), warmup, steps), limit)
        seconds = ended.json().get("step_seconds_median")
        if not seconds:
            raise Failed("the report has no step_seconds_median")
        return {"seconds": seconds, "memory": ended.peak(), "parameters": ended.json().get("parameters")}

    def theirs(self, model, what, warmup, steps, limit):
        case = model | what | {"device": self.machine.device, "warmup": warmup, "steps": steps}
        why = None
        for compiled in [True, False]:
            command = [sys.executable, os.path.abspath(__file__), "--torch-side", json.dumps(case | {"compile": compiled})]
            ended = self.process(command, limit)
            if ended.why is None:
                found = ended.json()
                mode = "compiled" if compiled else f"eager, since compiled: {why}"
                return found | {"memory": ended.peak(), "mode": mode}
            why = ended.why
        raise Failed(f"PyTorch: {why}")

    def check(self):
        command = [self.options.bin, "devices", "--check", self.machine.device, "--report", "json"]
        # It ends with status 1 if a kernel is wrong, and has said which.
        ended = self.process(command, self.left())
        lines = [line for line in ended.out.splitlines() if line.startswith("{")]
        if not lines:
            raise Failed(ended.why or "it printed no JSON")
        for kernel in json.loads(lines[-1])["kernels"]:
            error = kernel["largest_relative_error"]
            notes = [kernel["verdict"]] + ([] if error is None else [f"largest relative error {error:.1e}"])
            speeds = [number(kernel["tflops"], "{:,.1f}", " TFLOP/s"), number(kernel["gb_per_s"], unit=" GB/s")]
            what = f"{kernel['kernel']}, {kernel['dtype']}"
            self.table.row("check", what, "".join(speeds), notes=kernel["problem"] or ", ".join(notes))

    def products(self):
        self.beside_torch(
            "products", self.options.products, lambda found: "{product}, {rows} x {in} x {out}".format(**found), "CubeCL"
        )

    def attention(self):
        def what(found):
            return f"{' x '.join(map(str, found['shape']))}, {'with gradients' if found['backward'] else 'forward'}"

        self.beside_torch("attention", self.options.attention, what, "by products")

    def beside_torch(self, section, program, what, burns):
        """Runs a bench of ours, which prints a line of JSON for each case, and torch on the same cases."""
        if not program or self.options.device == "cpu":
            return self.table.row(section, "", notes=f"left out: it needs a GPU and --{section}")
        ended = self.process([program], self.left() * 0.7, environment={"BURN_DEVICE": self.machine.device})
        found = []
        for line in ended.out.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        if not found:
            raise Failed(ended.why or "it printed no JSON")
        case = json.dumps({"device": self.machine.device, "found": found})
        theirs = self.process([sys.executable, __file__, f"--torch-{section}", case], self.left())
        seconds = [json.loads(line)["seconds"] for line in theirs.out.splitlines() if line.startswith("{")]
        for at, case in enumerate(found):
            rate = lambda seconds: f"{case['gflop'] / seconds / 1000:,.1f} TFLOP/s"
            torch = seconds[at] if at < len(seconds) else None
            self.table.row(
                section,
                f"{what(case)}, {case['dtype'].lower()}",
                rate(case["seconds"]),
                rate(torch) if torch else "",
                f"{torch / case['seconds']:.2f}" if torch else "",
                f"{burns} {rate(case['seconds_burn'])}",
            )
        if ended.why:
            self.table.row(section, "the rest", notes=ended.why)

    def speed(self):
        model, quick = self.model, self.options.quick
        warmup, steps = (2, 4) if quick else (5, 20)
        sides = {(name, side): [] for name in SPEEDS for side in ["ours", "theirs"]}
        whys = {}
        # Each case once before any a second time, and whichever side went last goes first.
        for pair in range(1 if quick else 3):
            for name, (strategies, what) in SPEEDS.items():
                for side in ["ours", "theirs"] if pair % 2 == 0 else ["theirs", "ours"]:
                    if (side == "theirs" and what is None) or ((name, side) in whys and not sides[name, side]):
                        continue
                    try:
                        if side == "ours":
                            found = self.ours(model, strategies, warmup, steps, 150)
                        else:
                            found = self.theirs(model, what, warmup, steps, 150)
                        sides[name, side].append(found)
                    except Failed as error:
                        whys.setdefault((name, side), str(error))
        tokens = model["micro"] * model["block"]
        for name, (_, what) in SPEEDS.items():
            ours, theirs = sides[name, "ours"], sides[name, "theirs"]
            ratios = [their["seconds"] / our["seconds"] for our, their in zip(ours, theirs)]
            notes = [f"{min(len(ours), len(theirs)) if what else len(ours)} turns"]
            notes += [f"PyTorch {theirs[0]['mode']}"] if theirs else []
            if theirs and theirs[0]["peak"]:
                notes.append(f"its allocator's peak {theirs[0]['peak'] / 2**20:,.0f} MiB")
            counts = {found["parameters"] for found in ours[:1] + theirs[:1]}
            if len(counts) > 1:
                notes.append(f"parameters differ: {counts}")
            # A turn that failed only because time ran out matters only where there is no other.
            notes += [f"{side}: {whys[name, side]}" for side in ["ours", "theirs"] if (name, side) in whys and not sides[name, side]]
            self.table.row(
                "speed",
                f"{self.shape(model)}, {name}",
                self.figures(model, tokens, name, ours),
                self.figures(model, tokens, name, theirs),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "",
                "; ".join(notes),
            )

    def shape(self, model):
        return f"GPT, {short(weights(model))} parameters, {model['micro']} x {model['block']}"

    def figures(self, model, tokens, name, turns):
        """Tokens per second, MFU and memory of a side."""
        if not turns:
            return ""
        rate = tokens / statistics.median(turn["seconds"] for turn in turns)
        texts = [f"{rate:,.0f} tokens/s"]
        peak = self.options.peak_flops or self.peak("f32" if name == "f32" else "bf16")
        if peak:
            operations = 6 * (weights(model) - model["block"] * model["width"])
            operations += 12 * model["layers"] * model["width"] * model["block"]
            texts.append(f"MFU {100 * rate * operations / peak:.1f}%")
        memory = [turn["memory"] for turn in turns if turn["memory"] is not None]
        return ", ".join(texts + ([f"{max(memory):,.0f} MiB"] if memory else []))

    def peak(self, dtype):
        """The device's operations per second, or None."""
        for pattern, bf16, tf32 in PEAKS:
            if re.search(pattern, self.machine.name):
                return (bf16 if dtype == "bf16" else tf32) * 1e12
        return None

    def memory(self):
        steps = 300
        run = self.run_file(self.model, "Amp(bf16), Clip(norm: 1.0)", steps)
        log = os.path.join(self.folder, "run", "metrics.jsonl")
        shutil.rmtree(os.path.dirname(log), ignore_errors=True)
        seen = []  # (step, MiB, seconds)

        def watch(memory):
            with contextlib.suppress(OSError):
                with open(log, encoding="utf-8") as file:
                    seen.append((sum('"kind":"train"' in line for line in file), memory, time.monotonic()))

        command = [self.options.bin, "train", run, "--plain", "--device", self.machine.device]
        ended = self.process(command, self.left(), watch=watch)
        first = next((sample for sample in seen if sample[0] >= 50), None)
        if first is None:
            raise Failed(ended.why or "it ended before its memory was looked at after step 50")
        last = next((sample for sample in seen if sample[0] >= steps), seen[-1])
        notes = [ended.why] if ended.why else []
        if None not in [first[1], last[1]]:
            notes.insert(0, f"grows by {last[1] - first[1]:,.0f} MiB")
        if last[2] > first[2]:
            tokens = (last[0] - first[0]) * self.model["micro"] * self.model["block"]
            notes.append(f"{tokens / (last[2] - first[2]):,.0f} tokens/s by the clock between them")
        ours = ", ".join(f"{number(memory, unit=' MiB') or 'unknown'} at step {step}" for step, memory, _ in [first, last])
        self.table.row("memory", f"{self.shape(self.model)}, bf16", ours, notes="; ".join(notes))

    def kernels(self):
        if not shutil.which("nsys"):
            return self.table.row("kernels", "", notes="left out: nsys is not on PATH")
        steps, at = 20, os.path.join(self.folder, "profile")
        command = self.command(self.model, "Amp(bf16), Clip(norm: 1.0)", 10, steps)
        trace = ["nsys", "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "-o", at]
        seconds = self.process(trace + command, self.left()).json()["step_seconds_median"]
        exported = self.process(["nsys", "export", "--type=sqlite", "-o", f"{at}.sqlite", f"{at}.nsys-rep"], self.left())
        if exported.why:
            raise Failed(exported.why)
        busy, kinds = slowest(f"{at}.sqlite", seconds * (steps - 2))
        self.table.row(
            "kernels",
            f"{self.shape(self.model)}, bf16: the last {steps - 2} steps",
            f"{seconds * 1000:.1f} ms a step, kernels run {100 * busy:.0f}% of the time",
        )
        for name, spent, launches in kinds[:15]:
            each = f"{spent / (steps - 2) * 1000:.2f} ms a step in {launches / (steps - 2):.1f} launches"
            self.table.row("kernels", f"`{name[:80]}`", each)

    def largest(self):
        shape = dict(TINY, micro=1) if self.options.quick else WIDE
        # On a CPU the run's own budget takes the place of the device's memory.
        more = "" if self.machine.cuda else 'device_budget: "4MB",'
        total, ends = self.machine.total(), self.until
        block = 12 * shape["width"] ** 2
        for at, (name, strategies) in enumerate(STRATEGIES.items()):
            self.until = min(ends, time.monotonic() + (ends - time.monotonic()) / (len(STRATEGIES) - at))
            # A first guess at half of the memory, with 16 bytes for a parameter and, offloaded, 4.
            guess = int(total * 2**20 / 2 / ((4 if "Offload" in name else 16) * block)) if total else 8
            found = {}

            def fits(layers):
                command = self.command(shape | {"layers": layers}, strategies, 0, 2, more)
                ended = self.process(command, self.left() / 2)  # a smaller size may still have time
                found[layers] = (ended.why is None, ended.peak(), ended.why)
                return ended.why is None

            why = None
            try:
                bisect(fits, max(1, guess))
            except Failed as error:
                why = str(error)
            good = max((layers for layers, result in found.items() if result[0]), default=None)
            bad = min((layers for layers, result in found.items() if not result[0]), default=None)
            notes = [f"not {bad} layers: {found[bad][2]}"] if bad else []
            notes += [why] if why else []
            ours = "no size fits" if bad else ""
            if good:
                ours = f"{short(weights(shape | {'layers': good}))} parameters, {good} layers"
                ours += number(found[good][1], ", {:,.0f} MiB")
            self.table.row("largest", f"width {shape['width']}, {name}", ours, notes="; ".join(notes))
        self.until = ends


HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def short(count):
    """A number with three digits: 124M, 1.56B."""
    for size, unit in [(1e9, "B"), (1e6, "M"), (1e3, "k")]:
        if count >= size:
            return f"{count / size:.{2 if count < 10 * size else 1 if count < 100 * size else 0}f}{unit}"
    return str(count)


def weights(model):
    """The number of a GPT's parameters, with biases, learned positions and a tied head."""
    width = model["width"]
    tables = (model["vocabulary"] + model["block"]) * width
    return tables + model["layers"] * (12 * width * width + 13 * width) + 2 * width


def bisect(fits, start):
    """Asks for sizes from `start`: halved until one fits, doubled while they fit, then the middle to an eighth."""
    most = 2000  # layers that a model may have
    good, bad, size = 0, None, min(start, most)
    while size > 0 and good < most and (bad is None or bad - good > max(1, good // 8)):
        if fits(size):
            good = size
        else:
            bad = size
        size = min(2 * good, most) if bad is None else (good + bad) // 2


def test_programs(folder):
    """(program, folder of its package, name) of the newest test program of each name."""
    newest = {}
    for program in sorted(glob.glob(os.path.join(folder, "*")), key=os.path.getmtime):
        stem, dot, _ = os.path.basename(program).partition(".")
        if dot or not os.path.isfile(program) or not os.access(program, os.X_OK):
            continue
        name = re.sub("-[0-9a-f]{16}$", "", stem)
        package = package_of(program, name)
        if package:
            newest[package, name] = program
    listed = lambda program: any(line.endswith(": test") for line in answer(program, "--list"))
    return [(program, package, name) for (package, name), program in newest.items() if listed(program)]


def package_of(program, name):
    """The folder of a test program's package: by the sources in the file that cargo leaves beside it, or by name."""
    with contextlib.suppress(OSError):
        with open(f"{program}.d", encoding="utf-8") as file:
            source = os.path.join(HOME, file.readline().partition(": ")[2].split(" ")[0].strip())
        package = re.split(r"/(?:src|tests)/", source)[0]
        return package if os.path.exists(os.path.join(package, "Cargo.toml")) else None
    for manifest in [os.path.join(HOME, "Cargo.toml"), *sorted(glob.glob(os.path.join(HOME, "*", "Cargo.toml")))]:
        package = os.path.dirname(manifest)
        tests = [os.path.join(package, "tests", file) for file in [f"{name}.rs", os.path.join(name, "main.rs")]]
        if any(map(os.path.exists, tests)) or name == f"firebrick_{os.path.basename(package)}":
            return package
    return HOME if name == "firebrick" else None


def slowest(database, window):
    """The share of the last `window` seconds in which kernels ran, and (name, seconds, launches) in it, longest first."""
    with contextlib.closing(sqlite3.connect(database)) as opened:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        (end,) = opened.execute(f"SELECT max(end) FROM {table}").fetchone()
        if end is None:
            raise Failed("nsys saw no kernels")
        query = f"""SELECT names.value, sum(kernel.end - kernel.start) / 1e9 AS spent, count(*) FROM {table} AS kernel
            JOIN StringIds AS names ON names.id = kernel.shortName WHERE kernel.start >= ?
            GROUP BY names.value ORDER BY spent DESC"""
        kinds = opened.execute(query, (end - window * 1e9,)).fetchall()
    return sum(spent for _, spent, _ in kinds) / window, kinds


def heading(machine, options):
    """What the table is about: the device and versions."""
    about = [machine.name]
    if machine.cuda:
        about += [f"driver {line}" for line in machine.smi("gpu", "driver_version")[:1]]
        about += [f"{number(machine.total())} MiB"] if machine.total() else []
    about += answer(options.bin, "--version")[:1]
    about += [f"torch {line}" for line in answer(sys.executable, "-c", "import torch; print(torch.__version__)")[:1]]
    return f"{', '.join(about)}, {datetime.date.today()}. A ratio above 1 means that firebrick is faster."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="the program firebrick, built with the feature of the device")
    parser.add_argument("--tests", metavar="FOLDER", help="where the built test programs are")
    parser.add_argument("--products", metavar="PROGRAM", help="the built bench of products")
    parser.add_argument("--attention", metavar="PROGRAM", help="the built bench of attention")
    parser.add_argument("--out", metavar="FILE", help="write the table there too")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... or cpu (default: cuda)")
    parser.add_argument("--micro", type=int, help="rows of a micro-batch in speed and memory (default: 8)")
    parser.add_argument("--peak-flops", type=float, help="the device's peak, such as 989e12, if the script doesn't know it")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--minutes", type=float, help=f"for all sections together (default: {sum(SECTIONS.values()) / 60:.0f})")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps, to try the script")
    parser.add_argument("--torch-side", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--torch-products", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--torch-attention", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_side:
        return torch_side(options.torch_side)
    if options.torch_products:
        return torch_products(options.torch_products)
    if options.torch_attention:
        return torch_attention(options.torch_attention)
    if not options.bin:
        parser.error("--bin is needed")
    options.bin = os.path.abspath(options.bin)
    options.micro = options.micro or (2 if options.quick else 8)
    machine = Machine(options.device)
    stretch = options.minutes * 60 / sum(SECTIONS.values()) if options.minutes else 1
    table = Table(options.out, heading(machine, options))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, machine, table, folder)
        for section in [name for name in SECTIONS if name in options.sections]:
            bench.until = time.monotonic() + SECTIONS[section] * stretch
            try:
                getattr(bench, section)()
            except Failed as error:
                table.row(section, "", notes=f"failed: {error}")
            except Exception as error:  # a section that breaks is a row too
                table.row(section, "", notes=f"failed: {type(error).__name__}: {error}")
    print("\n".join(table.lines))


if __name__ == "__main__":
    main()
