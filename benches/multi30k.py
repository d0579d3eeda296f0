"""A small T5 learns to translate from scratch: BLEU of what it writes, early and late in one run.

    python3 benches/multi30k.py DATA [--pairs 5000] [--epochs 3 15] [--firebrick PATH]

DATA is the folder of Multi30k with `train.en`, `train.fr`, `val.en` and `val.fr`
(https://github.com/multi30k/dataset). Needs sacrebleu (`pip install sacrebleu`), and builds firebrick with cargo
unless `--firebrick` names it.

The first pairs of the training files make the data: English to French, with a byte-level BPE that is trained on
them. The run trains for the first number of epochs, and translates all of `val.en` greedily with its best weights
so far, by the loss of the validation pairs; then it goes on from its checkpoint to the next number, and translates
again. Printed are that loss and sacrebleu's BLEU of the texts as they are written.
"""

import argparse
import itertools
import json
import os
import tempfile
import time

import sacrebleu

import firebrick

RUN = """(
    seed: 1,
    device: "cpu",
    task: Seq2Seq(source: "en", target: "fr"),
    data: (
        path: {pairs},
        valid: {valid},
        format: Parallel(source: "en", target: "fr"),
        tokenizer: Bpe(vocabulary: 4000),
        special: (pad: "<pad>", eos: "</s>"),
        max_length: 64,
        group_by_length: true,
    ),
    model: T5(layers: 2, heads: 4, width: 128, dropout: 0.1),
    optimizer: AdamW(),
    schedule: InverseSqrt(lr: 2e-3, warmup: 200),
    batch: (micro: 32),
    epochs: {epochs},
    checkpoints: (every: 1000000), // and at the end
    strategies: [Clip(norm: 1.0)],
    output: {output},
)
"""


def first_pairs(data, count, folder):
    """The first so many pairs, as files of their own."""
    path = os.path.join(folder, "pairs")
    for language in ["en", "fr"]:
        with open(os.path.join(data, f"train.{language}"), encoding="utf-8") as file:
            lines = list(itertools.islice(file, count))
        with open(f"{path}.{language}", "w", encoding="utf-8") as file:
            file.writelines(lines)
    return path


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--epochs", type=int, nargs="+", default=[3, 15])
    parser.add_argument("--firebrick")
    options = parser.parse_args()
    program = options.firebrick or firebrick.build()
    expected = lines(os.path.join(options.data, "val.fr"))
    sources = lines(os.path.join(options.data, "val.en"))
    print(f"{options.pairs} pairs; greedy translations of {len(expected)}; sacrebleu {sacrebleu.__version__}")
    print(f"{'epochs':<8}{'updates':>8}{'best valid loss':>17}{'BLEU':>8}{'minutes':>9}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output, run = os.path.join(folder, "run"), os.path.join(folder, "run.ron")
        pairs = first_pairs(options.data, options.pairs, folder)
        for epochs in sorted(options.epochs):
            paths = {"pairs": pairs, "valid": os.path.join(options.data, "val"), "output": output}
            with open(run, "w", encoding="utf-8") as file:
                file.write(RUN.format(epochs=epochs, **{name: firebrick.quoted(path) for name, path in paths.items()}))
            started = time.time()
            firebrick.run(program, "train", run, "--plain", "--resume", "auto")
            minutes = (time.time() - started) / 60
            answers = [json.loads(line) for line in firebrick.run(program, "predict", output).splitlines()]
            written = [answer["predicted"] for answer in answers]
            bleu = sacrebleu.corpus_bleu(written, [expected])
            evaluations = firebrick.metrics(output, "valid")
            loss, updates = min(line["loss"] for line in evaluations), evaluations[-1]["step"]
            print(f"{epochs:<8}{updates:>8}{loss:>17.3f}{bleu.score:>8.2f}{minutes:>9.1f}", flush=True)
        print(f"\n{bleu.format()}")
        for row in range(3):
            print(f"\n  {sources[row]}\n  {written[row]}\n  {expected[row]}")


if __name__ == "__main__":
    main()
