"""Steps of a model in firebrick and in PyTorch: same shapes, cores, optimizer and clipping, in turns in one run.

    python3 benches/beside_torch.py [--cases NAME ...] [--pairs 9] [--steps 8] [--warmup 3] [--threads N]
        [--firebrick PATH] [--multi30k FOLDER] [--list]

Needs torch (`pip install torch`; the build for CPUs, since libraries for GPUs count as resident memory), and builds
firebrick with cargo unless `--firebrick` names it. `--list` prints the names of the cases. Cases that end in
`recompute` compare firebrick with itself: recompute of every block with none. The case of a Llama needs transformers;
that of a T5 also needs tokenizers, and Multi30k's `train.en` and `train.fr`
(https://github.com/multi30k/dataset) in the folder that `--multi30k` names.

A pair is one process of each side, one after the other, and pairs alternate which side goes first. A process makes
`--warmup` updates that do not count and `--steps` that do; its time is the median of these. PyTorch runs eagerly and,
if it has a compiler, through `torch.compile`; the faster of the two, measured once before the pairs, is compared.

Printed first are the processor, its widest vector instructions, and the f32 operations a second that a loop of
multiply-adds reaches on so many threads, compiled from `beside/peak.rs` by rustc: no product of matrices is faster. Both
sides choose their kernels by these instructions.

Printed for each case are the medians over the pairs, the spread (the lowest and the highest), and the ratio of
firebrick to PyTorch, for

* seconds of an update: forward, backward, clipping and AdamW, from the end of one update to the end of the next;
* resident memory: the largest resident set of the process (`ru_maxrss`), interpreter and libraries included.

What is the same: the model (both sides' number of parameters is compared), the batch's shape, f32 or bf16 with f32
master weights, AdamW with betas 0.9 and 0.95 and a decay of 0.1, clipping to a norm of 1, no dropout, and the number of
threads. PyTorch uses `scaled_dot_product_attention` where the model allows it, its fused AdamW, and in bf16
`torch.autocast`. A GPT has pre-norm blocks, learned positions, exact GELU, biases and a head tied to the embeddings;
the Llama and the T5 are transformers' own. The tokens of a GPT and a Llama are random on both sides. A T5 learns to
translate the first 5,000 pairs of Multi30k, each side in an order of its own, with one tokenizer; both pad a batch to
its longest texts.
"""

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

import firebrick

SMALL = {"layers": 6, "heads": 8, "width": 256, "vocabulary": 1024}
LARGE = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 8000}
LLAMA = {"family": "Llama", "layers": 6, "heads": 6, "width": 288, "inner": 768, "vocabulary": 32000}
T5 = {"family": "T5", "layers": 6, "heads": 8, "width": 512, "inner": 2048, "vocabulary": 8000, "pairs": 5000}

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
    "llama-15M-8x256-f32": LLAMA | {"batch": 8, "block": 256, "dtype": "f32"},
    "llama-15M-8x256-bf16": LLAMA | {"batch": 8, "block": 256, "dtype": "bf16"},
    "t5-small-multi30k-f32": T5 | {"batch": 32, "dtype": "f32"},
}

RUN = """(
    seed: 1,
    device: "cpu",
    {data},
    model: {model},
    optimizer: AdamW(betas: (0.9, 0.95), weight_decay: 0.1),
    schedule: Constant(lr: 1e-4),
    batch: (micro: {batch}),
    steps: {steps},
    evaluate_every: 1000000, // at the end alone
    strategies: [{strategies}],
    output: {output},
)
"""

MODELS = {
    "Gpt": "Gpt(layers: {layers}, heads: {heads}, width: {width}, bias: true, tied: true)",
    "Llama": "Llama(layers: {layers}, heads: {heads}, width: {width}, inner: {inner}, tied: true)",
    "T5": "T5(layers: {layers}, heads: {heads}, width: {width}, inner: {inner}, gated: false, tied: true)",
}


# The PyTorch side, in its own process.


def gpt(case):
    """The model, and what draws the arguments of a forward pass, which returns the loss."""
    import torch
    from torch import nn
    from torch.nn import functional

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

    def draw():
        rows = torch.randint(vocabulary, (case["batch"], block + 1))
        return {"ids": rows[:, :-1], "labels": rows[:, 1:]}

    return Gpt(), draw


def llama(case):
    """As `gpt`."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=case["vocabulary"],
        hidden_size=case["width"],
        intermediate_size=case["inner"],
        num_hidden_layers=case["layers"],
        num_attention_heads=case["heads"],
        tie_word_embeddings=True,
        use_cache=False,
    )

    def draw():
        # transformers shifts the labels; firebrick's input is a token shorter than its rows.
        rows = torch.randint(case["vocabulary"], (case["batch"], case["block"]))
        return {"input_ids": rows, "labels": rows}

    return transformers.LlamaForCausalLM(config), draw


def t5(case):
    """As `gpt`."""
    import random

    import tokenizers
    import torch
    import transformers

    config = transformers.T5Config(
        vocab_size=case["vocabulary"],
        d_model=case["width"],
        d_kv=case["width"] // case["heads"],
        d_ff=case["inner"],
        num_layers=case["layers"],
        num_heads=case["heads"],
        dropout_rate=0.0,
        feed_forward_proj="relu",
        decoder_start_token_id=0,
        use_cache=False,
    )
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(case["folder"], "tokenizer.json"))
    sides = []
    for language in ["en", "fr"]:
        with open(os.path.join(case["folder"], f"train.{language}"), encoding="utf-8") as file:
            sides.append([tokenizer.encode(text.rstrip("\n")).ids + [1] for text in file])
    pairs = list(zip(*sides))
    random.Random(1).shuffle(pairs)
    at = 0

    def padded(rows, pad):
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, pad)

    def draw():
        nonlocal at
        batch, at = pairs[at : at + case["batch"]], at + case["batch"]
        ids, labels = padded([pair[0] for pair in batch], 0), padded([pair[1] for pair in batch], -100)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    return transformers.T5ForConditionalGeneration(config), draw


def torch_side(case, mode, warmup, steps, threads):
    """Prints the seconds of each update and the number of parameters."""
    import contextlib

    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, draw = {"Gpt": gpt, "Llama": llama, "T5": t5}[case.get("family", "Gpt")](case)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model
    bf16 = case["dtype"] == "bf16"
    seconds, last = [], time.perf_counter()
    for _ in range(warmup + steps):
        inputs = draw()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = run(**inputs)
            loss = loss if isinstance(loss, torch.Tensor) else loss.loss
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
    model = MODELS[case.get("family", "Gpt")].format(**case)
    run = os.path.join(folder, "run.ron")
    with open(run, "w", encoding="utf-8") as file:
        what = {"data": data_of(case, options, folder), "model": model, "batch": case["batch"]}
        what |= {"output": firebrick.quoted(output), "strategies": ", ".join([*strategies, "Clip(norm: 1.0)"])}
        file.write(RUN.format(**what, steps=options.steps + options.warmup))
    command = [program, "train", run, "--plain"]
    done = finished(command, os.environ | {"RAYON_NUM_THREADS": str(options.threads)})
    if done is None:
        sys.exit(1)
    steps = firebrick.metrics(output, "train")
    seconds = [step["seconds"] for step in steps][options.warmup :]
    return statistics.median(seconds), done[1], steps[-1]["parameter_bytes"]


def data_of(case, options, folder):
    """The data of a run file, whose files it writes."""
    if "folder" in case:
        names = ["train", "valid", "tokenizer.json"]
        pairs, valid, tokenizer = (firebrick.quoted(os.path.join(case["folder"], name)) for name in names)
        return f"""task: Seq2Seq(source: "en", target: "fr"),
    data: (
        path: {pairs},
        valid: {valid},
        format: Parallel(source: "en", target: "fr"),
        tokenizer: File({tokenizer}),
        special: (pad: "<pad>", eos: "</s>"),
        max_length: 128,
    )"""
    train, valid = (os.path.join(folder, name) for name in ["train.txt", "valid.txt"])
    # The data have one token more than the letters of the text.
    letters = [chr(0x4E00 + at) for at in range(case["vocabulary"] - 1)]
    draw = random.Random(1)
    needed = (options.steps + options.warmup + 1) * case["batch"] * (case["block"] + 1)
    with open(train, "w", encoding="utf-8") as file:
        file.write("".join(letters) + "".join(draw.choices(letters, k=needed)))
    with open(valid, "w", encoding="utf-8") as file:
        file.write("".join(draw.choices(letters, k=case["block"] + 1)))
    paths = f"path: {firebrick.quoted(train)}, valid: {firebrick.quoted(valid)}"
    return f"data: ({paths}, tokenizer: Characters, block: {case['block']})"


def translations(case, multi30k, folder):
    """The case, with a folder of its pairs and a tokenizer that is trained on them."""
    import tokenizers

    for language in ["en", "fr"]:
        with open(os.path.join(multi30k, f"train.{language}"), encoding="utf-8") as file:
            lines = list(itertools.islice(file, case["pairs"]))
        for name, lines_of_it in [("train", lines), ("valid", lines[: case["batch"]])]:
            with open(os.path.join(folder, f"{name}.{language}"), "w", encoding="utf-8") as file:
                file.writelines(lines_of_it)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    paths = [os.path.join(folder, f"train.{language}") for language in ["en", "fr"]]
    tokenizer.train(paths, case["vocabulary"], special_tokens=["<pad>", "</s>"], show_progress=False)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    return case | {"folder": folder}


def processor(threads):
    """The processor's name, its widest vector instructions, and its GFLOP/s in f32."""
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        peak = os.path.join(folder, "peak")
        source = os.path.join(here, "beside", "peak.rs")
        subprocess.run(["rustc", "--edition", "2024", "-O", source, "-o", peak], check=True)
        found = json.loads(firebrick.run(peak, str(threads)))
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    speed = f"{found['gflops']:.0f} GFLOP/s in f32 at most" if found["gflops"] else "its peak is not known"
    return f"{names[0] if names else platform.machine()}, {found['instructions']}, {threads} threads: {speed}"


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
    parser.add_argument("--multi30k")
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
    print(processor(options.threads))
    print(f"{options.pairs} pairs of {options.steps} updates on {options.threads} threads; median (lowest to highest)")
    print(f"  {'':<8}{'firebrick':>42}{'beside':>42}    ratio")
    for name in options.cases:
        case = CASES[name]
        if "pairs" in case and not options.multi30k:
            print(f"{name}: left out, since --multi30k names no folder")
            continue
        with tempfile.TemporaryDirectory() as folder:
            if "pairs" in case:
                case = translations(case, options.multi30k, folder)
            compare(name, case, program, options, folder)


if __name__ == "__main__":
    main()
