"""What transformers' tokenizer classes make of a tokenizer.json, by the fields of the tokenizer_config.json beside it.

Run by hand from anywhere: python3 classes.py   (writes classes.json next to itself)
Made with Python 3.11.7, transformers 5.23.0, tokenizers 0.23.3.
"""

import json
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

HERE = Path(__file__).parent
VERSIONS = {"transformers": "5.23.0", "tokenizers": "0.23.3"}

TEXTS = ["The Río in OSLO, 日本x", " bread", "doesn't  IT", "é", ""]
PAIR = ["the old mill", "Bread"]

BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
END = "<|endoftext|>"
GPT = {"unk_token": END, "bos_token": END, "eos_token": END}
ROBERTA = GPT | {"cls_token": END, "sep_token": END, "pad_token": END, "mask_token": "<mask>"}
CASED = {"/normalizer/lowercase": False}
BARE = {"/pre_tokenizer/add_prefix_space": False}
OF_ROBERTA = {
    "/post_processor": {"type": "RobertaProcessing", "sep": [END, 0], "cls": [END, 0], "trim_offsets": True, "add_prefix_space": True}
}
INPUTS = ["input_ids", "attention_mask"]
SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]

# The tokenizer, what is changed of its tokenizer.json, tokenizer_config.json, config.json.
CASES = [
    *(("wordpiece", patch, BERT | {"tokenizer_class": "BertTokenizer"} | fields, {}) for patch in ({}, CASED) for fields in (
        {}, {"do_lower_case": True}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False}, {"tokenize_chinese_chars": False},
    )),
    ("wordpiece", CASED, BERT | {"tokenizer_class": "BertTokenizerFast"}, {}),
    ("wordpiece", {}, BERT | {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}, {}),
    ("wordpiece", CASED, BERT, {"model_type": "bert"}),
    ("wordpiece", {}, BERT | {"do_lower_case": False}, {"model_type": "bert"}),
    ("wordpiece", {}, BERT | {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, {"model_type": "bert"}),
    ("wordpiece", {}, BERT | {"tokenizer_class": "BertTokenizer", "model_input_names": INPUTS}, {}),
    ("wordpiece", {}, BERT | {"tokenizer_class": "TokenizersBackend", "model_input_names": INPUTS}, {}),
    ("wordpiece", {}, BERT | {"tokenizer_class": "TokenizersBackend", "model_input_names": SEGMENTS}, {}),
    *(("bytebpe", patch, GPT | {"tokenizer_class": "GPT2Tokenizer"} | fields, {}) for patch in ({}, BARE) for fields in (
        {}, {"add_prefix_space": True}, {"add_prefix_space": False},
    )),
    *(("bytebpe", OF_ROBERTA, ROBERTA | {"tokenizer_class": "RobertaTokenizer"} | fields, {}) for fields in (
        {}, {"add_prefix_space": True}, {"add_prefix_space": False},
    )),
    ("bytebpe", {}, GPT, {"model_type": "gpt2"}),
    ("bytebpe", {}, GPT | {"tokenizer_class": "PreTrainedTokenizerFast"}, {"model_type": "gpt2"}),
    ("bytebpe", {}, GPT | {"tokenizer_class": "TokenizersBackend", "add_prefix_space": False}, {}),
]


def patched(tokenizer, patch):
    for pointer, value in patch.items():
        *path, last = pointer.split("/")[1:]
        place = tokenizer
        for key in path:
            place = place[key]
        place[last] = value
    return tokenizer


def case(name, patch, config, model):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        tokenizer = patched(json.loads((HERE / name / "tokenizer.json").read_text()), patch)
        for file, content in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config), ("config.json", model)]:
            (folder / file).write_text(json.dumps(content))
        fast = AutoTokenizer.from_pretrained(folder)
    pair = fast(*PAIR)
    return {
        "tokenizer": name,
        "patch": patch,
        "config": config,
        "model": model,
        "ids": [fast(text)["input_ids"] for text in TEXTS],
        "pair": pair["input_ids"],
        # What the model takes for its absence.
        "types": pair.get("token_type_ids", [0] * len(pair["input_ids"])),
    }


def main():
    cases = [case(*each) for each in CASES]
    golden = {"versions": VERSIONS, "texts": TEXTS, "first": PAIR[0], "second": PAIR[1]}
    lines = [f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False)}" for key, value in golden.items()]
    rows = ",\n".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in cases)
    (HERE / "classes.json").write_text("{" + ",\n".join(lines) + ',\n"cases":[' + rows + "]}\n")


if __name__ == "__main__":
    main()
