"""Encodes and collates small batches with transformers' tokenizers and data collators.

Run by hand from anywhere: python3 collators.py   (writes encodings.json and collators.json next to itself)
Made with Python 3.11.7, transformers 5.23.0, tokenizers 0.23.3, torch 2.15.0 on the CPU.
"""

import itertools
import json
import logging
import warnings
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    T5Config,
    T5ForConditionalGeneration,
)

HERE = Path(__file__).parent
NAMES = ["wordpiece", "bytebpe", "unigram"]
VERSIONS = {"transformers": "5.23.0", "tokenizers": "0.23.3", "torch": "2.15.0+cu132"}

TEXTS = [
    "The river runs slowly through the fields.",
    "Maria doesn't  live in New York, Zürich 日本 🙂",
    "",
    " ",
    "bread",
    "An old mill\tstands at\nthe bridge; its wheel has not turned for thirty years, unbelievable.",
    "naïve “quotes” — 12,500 crowns at 4.75 %",
]
WORDS = [
    ["Maria", "doesn't", "live", "in", "New York", "."],
    ["\u200b", "Oslo", "", "日本", " ", "🙂", "x"],
    [],
    ["unbelievable"],
    ["The", "Gdansk", "carpenter", "answered", "first", ":", "the", "roof", "is", "sound", "today"],
]
# Two sequences, in this order, of different lengths.
PAIRS = [
    ("the old mill stands at the bridge", "the river"),
    ("bread", "the children swim in the river in the summer"),
    ("the wheel turned", "the wheel is lost"),
    ("", "the river"),
    ("", ""),
]


# T5's tokenizer has no mask token; both sides use this one.
MASKS = {"unigram": {"mask_token": "<extra_id_0>"}}


def load(name, padding_side="right", truncation_side="right", **roles):
    return AutoTokenizer.from_pretrained(HERE / name, padding_side=padding_side, truncation_side=truncation_side, **roles)


def to_bytes(text, offset):
    """Converts offsets, which count characters in Python and bytes in Rust."""
    return [len(text[:place].encode()) for place in offset]


def encoded(fast, first, second, max_length, stride, truncation, special):
    """Returns all encodings of one input, in the form of the Rust side."""
    words = isinstance(first, list)
    # A batch of one pair: for a single pair, the tokenizer treats an empty second text as missing.
    result = fast(
        [first],
        None if second is None else [second],
        is_split_into_words=words,
        add_special_tokens=special,
        truncation=False if max_length is None else truncation,
        max_length=max_length,
        stride=stride or 0,
        return_overflowing_tokens=stride is not None,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        return_special_tokens_mask=True,
    )
    pieces = []
    for encoding in result.encodings:
        offsets = []
        for token, offset in enumerate(encoding.offsets):
            # An encoding that truncation leaves without a second sequence has only one text.
            sequence = encoding.sequence_ids[token]
            source = second if sequence == 1 else first
            if encoding.special_tokens_mask[token]:
                offsets.append(list(offset))
            elif words:
                offsets.append(to_bytes(source[encoding.word_ids[token]], offset))
            else:
                offsets.append(to_bytes(source, offset))
        pieces.append(
            {
                "ids": encoding.ids,
                "type_ids": encoding.type_ids,
                "special": encoding.special_tokens_mask,
                "words": encoding.word_ids,
                "offsets": offsets,
            }
        )
    return pieces


def encodings():
    cases = []

    def add(name, first, second=None, max_length=None, stride=None, cut="right", truncation="longest_first", special=True):
        fast = load(name, truncation_side=cut)
        cases.append(
            {
                "tokenizer": name,
                "first": first,
                "second": second,
                "max_length": max_length,
                "stride": stride,
                "cut": cut,
                "truncation": truncation,
                "special": special,
                "pieces": encoded(fast, first, second, max_length, stride, truncation, special),
            }
        )

    for name in NAMES:
        for text in TEXTS:
            add(name, text)
            add(name, text, special=False)
        for text in [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[5]]:
            for max_length, stride, cut in [(7, None, "right"), (7, None, "left"), (8, 2, "right"), (8, 2, "left"), (6, 0, "right")]:
                add(name, text, max_length=max_length, stride=stride, cut=cut)
        for words in WORDS:
            add(name, words)
            add(name, words, max_length=9)
            add(name, words, max_length=9, stride=3)
        for first, second in PAIRS:
            add(name, first, second)
        for first, second in PAIRS[:3]:
            for max_length in [9, 10]:
                add(name, first, second, max_length=max_length)
                add(name, first, second, max_length=max_length, cut="left")
        add(name, *PAIRS[0], max_length=14, truncation="only_first")
        add(name, *PAIRS[1], max_length=14, truncation="only_second")
        add(name, *PAIRS[0], max_length=14, stride=2, truncation="only_first")
        add(name, *PAIRS[1], max_length=14, stride=2, truncation="only_second")
        add(name, WORDS[0], WORDS[4], max_length=16)
    return cases


def rows(batch):
    """Returns a batch's tensors as lists."""
    return {key: value.tolist() for key, value in batch.items() if isinstance(value, torch.Tensor)}


PADDINGS = [
    {"side": "right", "multiple": None, "length": None},
    {"side": "left", "multiple": None, "length": None},
    {"side": "right", "multiple": 8, "length": None},
    {"side": "left", "multiple": 8, "length": None},
    {"side": "right", "multiple": None, "length": 40},
    {"side": "right", "multiple": 16, "length": 40},
]


# Truncation: none, at the end, at the beginning.
LIMITS = [(None, "right"), (6, "right"), (6, "left")]
# A batch with rows of odd lengths: an empty one, one far too long, one with unknown characters.
BATCH = [
    "the river runs",
    "bread",
    "",
    "an old mill stands at the bridge; its wheel has not turned for thirty years",
    "Zürich 日本, a river",
    "children swim in the summer",
]


def cut(max_length):
    return {"truncation": max_length is not None, "max_length": max_length}


def settings(padding):
    return {
        "padding": "longest" if padding["length"] is None else "max_length",
        "max_length": padding["length"],
        "pad_to_multiple_of": padding["multiple"],
    }


LABEL_NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TAGS = [
    ["B-PER", "O", "O", "O", "B-LOC", "O"],
    ["B-PER", "B-LOC", "O", "I-LOC", "B-PER", "O", "I-PER"],
    [],
    ["B-LOC"],
    ["O", "B-LOC", "O", "O", "O", "O", "O", "O", "O", "O", "B-PER"],
]


def align(word_ids, tags, subwords):
    """Follows the token classification guide, in its three variants."""
    labels, before = [], None
    for word in word_ids:
        if word is None:
            labels.append(-100)
        elif word != before:
            labels.append(tags[word])
        elif subwords == "first":
            labels.append(-100)
        elif subwords == "all":
            labels.append(tags[word])
        else:
            # An odd label begins an entity; the next label continues it.
            labels.append(tags[word] + tags[word] % 2)
        before = word
    return labels


def token_classification():
    cases = []
    variants = [
        ("first", None, None, "right"),
        ("inside", None, None, "right"),
        ("all", None, None, "right"),
        ("first", 9, None, "right"),
        ("all", 9, None, "left"),
        ("inside", 9, 3, "right"),
        ("first", 6, 1, "left"),
    ]
    for name, (subwords, max_length, stride, side) in itertools.product(NAMES, variants):
        paddings = PADDINGS if (subwords, max_length) == ("first", None) else PADDINGS[1:3]
        for padding in paddings:
            fast = load(name, padding["side"], side)
            features = []
            for words, tags in zip(WORDS, TAGS, strict=True):
                result = fast(
                    words,
                    is_split_into_words=True,
                    truncation=max_length is not None,
                    max_length=max_length,
                    stride=stride or 0,
                    return_overflowing_tokens=stride is not None,
                )
                ids = [LABEL_NAMES.index(tag) for tag in tags]
                for encoding in result.encodings:
                    labels = align(encoding.word_ids, ids, subwords)
                    features.append({"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "labels": labels})
                    if "token_type_ids" in fast.model_input_names:
                        features[-1]["token_type_ids"] = encoding.type_ids
            batch = DataCollatorForTokenClassification(fast, **settings(padding))(features)
            cases.append(
                {"tokenizer": name, "subwords": subwords, "max_length": max_length, "stride": stride, "cut": side, "pad": padding, **rows(batch)}
            )
    return {"names": LABEL_NAMES, "words": WORDS, "tags": TAGS, "cases": cases}


# No punctuation and no character of several tokens, so that both sides agree on words.
PLAIN = ["the unbelievable river rereads", "bread", "children swim in the summer", ""]
# A mask token and an end token within the text.
LITERAL = {
    "wordpiece": "the [MASK] river [SEP] runs",
    "bytebpe": "the<mask> river<|endoftext|> runs",
    "unigram": "the<extra_id_0> river</s> runs",
}


def masked_lm():
    cases = []
    # Probabilities of 0 and 1 make the result deterministic.
    variants = [(False, 1.0, padding) for padding in PADDINGS[:4]]
    variants += [(False, 0.0, PADDINGS[1]), (True, 1.0, PADDINGS[0]), (True, 0.0, PADDINGS[0])]
    for name, (whole_words, probability, padding), (max_length, side) in itertools.product(NAMES, variants, LIMITS):
        fast = load(name, padding["side"], side, **MASKS.get(name, {}))
        collator = DataCollatorForLanguageModeling(
            fast,
            whole_word_mask=whole_words,
            mlm_probability=probability,
            mask_replace_prob=1.0,
            random_replace_prob=0.0,
            pad_to_multiple_of=padding["multiple"],
        )
        features = [
            dict(fast(text, return_special_tokens_mask=True, return_offsets_mapping=whole_words, **cut(max_length)))
            for text in BATCH
        ]
        if whole_words:
            # Offsets are not padded, so rows of different lengths fail, and each text is a batch.
            parts = [rows(collator([feature])) for feature in features if feature["input_ids"]]
            batch = {key: [part[key][0] for part in parts] for key in ["input_ids", "labels"]}
        else:
            batch = rows(collator(features))
        case = {"tokenizer": name, "whole_words": whole_words, "probability": probability}
        cases.append({**case, "max_length": max_length, "cut": side, "pad": padding, **batch})
    literal = []
    for name, text in LITERAL.items():
        fast = load(name, **MASKS.get(name, {}))
        collator = DataCollatorForLanguageModeling(fast, mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
        literal.append({"tokenizer": name, "text": text, **rows(collator([fast(text, return_special_tokens_mask=True)]))})
    groups = []
    for name, (max_length, side), text in itertools.product(NAMES, LIMITS, [*PLAIN, "Zürich, Maria's 日本"]):
        fast = load(name, truncation_side=side)
        result = fast(
            text, return_special_tokens_mask=True, return_offsets_mapping=True, return_tensors="np", **cut(max_length)
        )
        if result["input_ids"].shape[1]:
            words, _ = DataCollatorForLanguageModeling._calc_word_ids_and_prob_mask(
                result["offset_mapping"], result["special_tokens_mask"]
            )
            group = {"tokenizer": name, "max_length": max_length, "cut": side, "text": text}
            groups.append({**group, "words": words[0].tolist()})
    return {"texts": BATCH, "cases": cases, "literal": literal, "groups": groups}


# A text of one token and, for GPT-2's tokenizer, one that ends with the padding token.
CAUSAL = [*BATCH, "a", "the river<|endoftext|>"]


def causal_lm():
    cases = []
    for name, padding, (max_length, side) in itertools.product(NAMES, PADDINGS[:4], LIMITS):
        fast = load(name, padding["side"], side)
        collator = DataCollatorForLanguageModeling(fast, mlm=False, pad_to_multiple_of=padding["multiple"])
        features = [fast(text, **cut(max_length)) for text in CAUSAL]
        case = {"tokenizer": name, "pad": padding, "max_length": max_length, "cut": side}
        cases.append({**case, **rows(collator(features))})
    return {"texts": CAUSAL, "cases": cases}


SOURCES = ["the mill", "the wheel of the old mill is lost, and the children swim in the river", "", "bread", "the river"]
TARGETS = ["die Mühle", "the carpenter answered first: the roof is sound", "x", "", "el río nunca se detiene"]
PREFIX = "say it again: "


def seq2seq():
    small = {"d_model": 8, "num_layers": 1, "num_heads": 1, "d_kv": 8, "d_ff": 8}
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=420, pad_token_id=0, decoder_start_token_id=0, **small))
    layers = {f"{part}_{what}": 1 for part in ["encoder", "decoder"] for what in ["layers", "attention_heads"]}
    bart = BartForConditionalGeneration(
        BartConfig(vocab_size=420, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0, decoder_start_token_id=1, **layers)
    )
    cases = []
    variants = [
        (t5, 0, PREFIX, None, None, "right"),
        (t5, 0, PREFIX, 12, 7, "right"),
        (bart, 1, "", 9, 5, "left"),
        (bart, 1, "", None, 9, "right"),
    ]
    paddings = [*PADDINGS[:4], PADDINGS[4]]
    for name, (model, start, prefix, source_length, target_length, side), padding in itertools.product(NAMES, variants, paddings):
        if padding["length"] and source_length is None:
            continue
        fast = load(name, padding["side"], side)
        features = []
        for source, target in zip(SOURCES, TARGETS, strict=True):
            feature = fast(prefix + source, **cut(source_length))
            labels = fast(text_target=target, **cut(target_length))
            features.append({**feature, "labels": labels["input_ids"]})
        batch = DataCollatorForSeq2Seq(fast, model=model, **settings(padding))(features)
        case = {"tokenizer": name, "start": start, "prefix": prefix, "max_source": source_length, "max_target": target_length}
        cases.append({**case, "cut": side, "pad": padding, **rows(batch)})
    # The unsupervised part, which the decoder does not read either.
    fast = load("unigram")
    labels = [-100, -100, *fast("the river").input_ids[2:]]
    collated = DataCollatorForSeq2Seq(fast, model=t5)([{**fast("bread"), "labels": labels}])
    prompted = {"source": "bread", "target": "the river", "prompt": 2, **rows(collated)}
    return {"sources": SOURCES, "targets": TARGETS, "cases": cases, "prompted": prompted}


def sequence_classification():
    cases = []
    classes, numbers = [0, 2, 1, 1, 0], [0.5, -1.0, 3.25, 0.0, 1e-3]
    variants = [
        (False, None, "right", classes),
        (True, None, "right", numbers),
        (True, 10, "right", classes),
        (True, 10, "left", numbers),
    ]
    for name, padding, (paired, max_length, side, target) in itertools.product(NAMES, PADDINGS, variants):
        fast = load(name, padding["side"], side)
        features = []
        for (first, second), label in zip(PAIRS, target, strict=True):
            second = [second] if paired else None
            feature = fast([first], second, truncation="longest_first" if max_length else False, max_length=max_length)
            features.append({**{key: value[0] for key, value in feature.items()}, "label": label})
        batch = DataCollatorWithPadding(fast, **settings(padding))(features)
        case = {"tokenizer": name, "paired": paired, "max_length": max_length, "cut": side, "target": target}
        cases.append({**case, "pad": padding, **rows(batch)})
    return {"pairs": PAIRS, "cases": cases}


# The classes of each text of the batch, out of three.
CLASSES = [[0], [], [0, 1, 2], [2], [0, 2], [1]]


def multi_hot():
    """Collates several classes, and pads single texts: the inputs equal those without labels."""
    cases = []
    for name, padding, (max_length, side) in itertools.product(NAMES, PADDINGS, LIMITS):
        if padding["length"] and max_length is None:
            continue
        fast = load(name, padding["side"], side)
        plain = [fast(text, **cut(max_length)) for text in BATCH]
        flags = [[float(number in present) for number in range(3)] for present in CLASSES]
        features = [{**feature, "labels": each} for feature, each in zip(plain, flags, strict=True)]
        collator = DataCollatorWithPadding(fast, **settings(padding))
        batch = collator(features)
        assert batch["labels"].dtype == torch.float32
        labels = batch.pop("labels").tolist()
        assert rows(batch) == rows(collator(plain))
        cases.append({"tokenizer": name, "max_length": max_length, "cut": side, "pad": padding, "labels": labels, **rows(batch)})
    return {"texts": BATCH, "classes": CLASSES, "cases": cases}


# Texts that share a row, and the number of unsupervised tokens of each.
PACKS = [[0, 1, 5], [3], [2, 4, 6, 1]]
PROMPTS = [0, 1, 0, 3, 2, 0, 0]


def flattening():
    """Flattens each pack into a row and pads the rows like the labels of tokens."""
    cases = []
    variants = [(None, "right", False), (None, "right", True), (6, "right", True), (6, "left", False)]
    for name, (max_length, side, prompted), padding in itertools.product(NAMES, variants, PADDINGS[:4]):
        fast = load(name, padding["side"], side)
        flat = []
        for pack in PACKS:
            features = []
            for text in pack:
                ids = fast(CAUSAL[text], **cut(max_length))["input_ids"]
                # For an empty text, it makes a label without a token.
                if ids:
                    prompt = min(PROMPTS[text], len(ids))
                    features.append({"input_ids": ids, **({"labels": [-100] * prompt + ids[prompt:]} if prompted else {})})
            result = DataCollatorWithFlattening(return_seq_idx=True)(features)
            flat.append({key: value[0] for key, value in rows(result).items()})
        batch = DataCollatorForTokenClassification(fast, **settings(padding))(
            [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in flat]
        )
        case = {"tokenizer": name, "max_length": max_length, "cut": side, "prompted": prompted, "pad": padding, **rows(batch)}
        cases.append({**case, **{key: [row[key] for row in flat] for key in ["position_ids", "seq_idx"]}})
    return {"texts": CAUSAL, "packs": PACKS, "prompts": PROMPTS, "cases": cases}


def write(name, content):
    path = HERE / name
    path.write_text(json.dumps({"versions": VERSIONS, **content}, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.ERROR)
    write("encodings.json", {"cases": encodings()})
    write(
        "collators.json",
        {
            "token_classification": token_classification(),
            "masked_lm": masked_lm(),
            "causal_lm": causal_lm(),
            "seq2seq": seq2seq(),
            "sequence_classification": sequence_classification(),
            "multi_hot": multi_hot(),
            "flattening": flattening(),
        },
    )
