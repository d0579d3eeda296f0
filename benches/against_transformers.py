"""Tokenizing and collating beside Hugging Face's transformers: same machine, same cores, same data.

    python3 benches/against_transformers.py DATA

DATA is a folder with `multi30k/train.en`, `multi30k/train.fr` and `wnut17/wnut17train.conll`. Needs
torch and transformers (`pip install torch transformers`), and builds the Rust side with cargo.

For each task both sides read the text from its files, tokenize it with the same tokenizer.json (made here, of
8,000 tokens, and loaded before the time is taken), and collate all of it into padded tensors, 32 samples a batch. They take turns; the best of
five rounds counts, since other work on the machine only adds time. What is printed is a ratio: how
many times longer transformers takes. Both sides print how many tokens they made of the text, and the script
stops if they differ.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerFast,
)

ROUNDS = 5
BATCH = 32
VOCABULARY = 8000


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def wordpiece(text):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_bpe(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|end|>", eos_token="<|end|>")


def unigram(text):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def batches(features):
    names = list(features)
    for start in range(0, len(features[names[0]]), BATCH):
        columns = [features[name][start : start + BATCH] for name in names]
        yield [dict(zip(names, row)) for row in zip(*columns)]


def collate(collator, features):
    return sum(int(collator(batch)["attention_mask"].sum()) for batch in batches(features))


def seq2seq(tokenizer, data):
    sources, targets = lines(f"{data}/multi30k/train.en"), lines(f"{data}/multi30k/train.fr")
    encoded = tokenizer(sources)
    features = {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "labels": tokenizer(text_target=targets)["input_ids"],
    }
    return collate(DataCollatorForSeq2Seq(tokenizer, return_tensors="pt"), features)


def masked_lm(tokenizer, data):
    encoded = tokenizer(lines(f"{data}/multi30k/train.en"), return_special_tokens_mask=True)
    return collate(DataCollatorForLanguageModeling(tokenizer, mlm=True), dict(encoded))


def causal_lm(tokenizer, data):
    encoded = tokenizer(lines(f"{data}/multi30k/train.en"))
    return collate(DataCollatorForLanguageModeling(tokenizer, mlm=False), dict(encoded))


def token_classification(tokenizer, data):
    sentences, labels, words, tags = [], [], [], []
    for line in lines(f"{data}/wnut17/wnut17train.conll") + [""]:
        if line.strip():
            word, tag = line.split("\t")
            words.append(word)
            tags.append(tag)
        elif words:
            sentences.append(words)
            labels.append(tags)
            words, tags = [], []
    names = {name: place for place, name in enumerate(sorted({tag for tags in labels for tag in tags}))}
    encoded = tokenizer(sentences, is_split_into_words=True)
    aligned = []
    for row, tags in enumerate(labels):
        previous, ids = None, []
        for word in encoded.word_ids(batch_index=row):
            ids.append(-100 if word is None or word == previous else names[tags[word]])
            previous = word
        aligned.append(ids)
    features = {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "labels": aligned,
    }
    return collate(DataCollatorForTokenClassification(tokenizer), features)


def seconds(work):
    start = time.perf_counter()
    tokens = work()
    return time.perf_counter() - start, tokens


def bench(binary, *arguments):
    printed = subprocess.run([binary, *arguments], check=True, capture_output=True, text=True).stdout
    return json.loads(printed)


def build():
    command = ["cargo", "bench", "--bench", "tokenize_and_collate", "--no-run", "--message-format", "json"]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    messages = subprocess.run(command, check=True, cwd=here, stdout=subprocess.PIPE, text=True).stdout
    found = [json.loads(line) for line in messages.splitlines()]
    return next(
        message["executable"]
        for message in found
        if message.get("target", {}).get("name") == "tokenize_and_collate" and message.get("executable")
    )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = sys.argv[1]
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    transformers.logging.set_verbosity_error()
    binary = build()
    text = lines(f"{data}/multi30k/train.en") + lines(f"{data}/multi30k/train.fr")
    makers = {"WordPiece": wordpiece, "byte-level BPE": byte_bpe, "unigram": unigram}
    rows = [
        ("masked_lm", masked_lm, "WordPiece"),
        ("token_classification", token_classification, "WordPiece"),
        ("causal_lm", causal_lm, "byte-level BPE"),
        ("seq2seq", seq2seq, "unigram"),
    ]
    print(f"transformers {transformers.__version__}, {os.cpu_count()} cores")
    print(f"{'task':<22}{'tokenizer':<16}{'tokens':>9}{'transformers':>14}{'firebrick':>11}{'ratio':>8}")
    for task, work, kind in rows:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = makers[kind](text)
            tokenizer.save_pretrained(folder)
            theirs, ours = [], []
            for _ in range(ROUNDS):
                took, tokens = seconds(lambda: work(tokenizer, data))
                theirs.append(took)
                found = bench(binary, task, data, folder)
                ours.append(found["seconds"])
                if found["tokens"] != tokens:
                    sys.exit(f"{task}: transformers makes {tokens} tokens, firebrick {found['tokens']}")
            ratio = min(theirs) / min(ours)
            print(f"{task:<22}{kind:<16}{tokens:>9}{min(theirs):>12.3f} s{min(ours):>9.3f} s{ratio:>7.1f}x", flush=True)
    found = bench(binary, "token_file")
    print(
        f"\nA token file of {found['bytes'] / 1e6:.0f} MB, read in windows: {found['read_gb_per_second']:.1f} GB/s; "
        f"copying as much memory: {found['copy_gb_per_second']:.1f} GB/s; ratio {found['ratio']:.2f}"
    )


if __name__ == "__main__":
    main()
