"""Records how transformers' tokenizer classes change a tokenizer.json, by the fields of its tokenizer_config.json.

Run by hand from anywhere: python3 classes.py   (writes classes.json next to itself)
Made with Python 3.11.7, transformers 5.23.0, tokenizers 0.23.3. "agrees" says whether version 4 makes the same ids
(null: it cannot read the folder). Set V4 to a Python with transformers 4.57.6 and tokenizers 0.22.2:
V4=/path/to/python python3 classes.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

HERE = Path(__file__).parent
VERSIONS = {"transformers": "5.23.0", "tokenizers": "0.23.3"}

TEXTS = ["The Río in OSLO, 日本x", " bread", "doesn't  IT", "é", "", "the <new> old [MASK] mill . oslo"]
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
# The pattern of Qwen2's class.
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
INPUTS = ["input_ids", "attention_mask"]
SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]

FIELDS = [{}, {"add_prefix_space": True}, {"add_prefix_space": False}]


def sequence(first, space):
    last = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": False, "use_regex": False}
    return {"/normalizer": {"type": "NFC"}, "/pre_tokenizer": {"type": "Sequence", "pretokenizers": [first, last]}}


def qwen(space):
    return sequence({"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, space)


def cohere(space):
    patch = sequence({"type": "Digits", "individual_digits": True}, space)
    patch["/pre_tokenizer"]["pretokenizers"][1] |= {"trim_offsets": True, "use_regex": True}
    return patch


def framed(bos, eos, token=END, id=0):
    special = [{"SpecialToken": {"id": token, "type_id": 0}}]
    single = special * bos + [{"Sequence": {"id": "A", "type_id": 0}}] + special * eos
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    tokens = {token: {"id": token, "ids": [id], "tokens": [token]}}
    return {"/post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}}


# The content of a tokenizer.json of Llama and of Gemma, with the vocabulary of `bytebpe`.
LLAMA = {
    "/model/byte_fallback": True,
    "/model/fuse_unk": True,
    "/pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
    "/decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]},
}
GEMMA = {
    "/model/unk_token": END,
    "/model/byte_fallback": True,
    "/model/fuse_unk": True,
    "/normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "/pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    "/decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]},
}
FRAMES = [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}]
ALL = GPT | {"pad_token": END, "mask_token": "<mask>"}


def token(content, **settings):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    return {"content": content} | flags | settings


def words(**fields):
    return BERT | {"tokenizer_class": "PreTrainedTokenizerFast"} | fields


# The tokenizer, the changes to its tokenizer.json, tokenizer_config.json, config.json.
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
    *(("bytebpe", patch, ALL | {"tokenizer_class": "Qwen2TokenizerFast"} | fields, model) for patch in (qwen(False), qwen(True))
      for fields in FIELDS for model in ({}, {"model_type": "qwen2"})),
    ("bytebpe", qwen(True), ALL, {"model_type": "qwen2"}),
    *(("bytebpe", cohere(False), ALL | {"tokenizer_class": "CohereTokenizerFast"} | fields, {}) for fields in FIELDS + FRAMES),
    *(("bytebpe", framed(*frame), ALL | {"tokenizer_class": "LlamaTokenizerFast"} | fields, {})
      for frame in ((False, False), (True, False), (True, True)) for fields in FRAMES),
    *(("bytebpe", LLAMA | framed(True, False), ALL | {"tokenizer_class": "LlamaTokenizer"} | fields, {}) for fields in FRAMES),
    *(("bytebpe", GEMMA | framed(True, False), ALL | {"tokenizer_class": "GemmaTokenizer"} | fields, {}) for fields in FRAMES),
    *(("bytebpe", {"/normalizer": {"type": "NFC"}} | framed(*frame), ALL | {"tokenizer_class": "GPTNeoXTokenizerFast"} | fields, {})
      for frame in ((False, False), (True, True)) for fields in FRAMES),
    *(("bytebpe", {}, ALL | {"tokenizer_class": name} | fields, {})
      for name in ("UnheardOfTokenizer", "PreTrainedTokenizerFast") for fields in FIELDS),
    *(("wordpiece", {}, words(**fields), {}) for fields in (
        {"added_tokens_decoder": {"320": token("<new>")}},
        {"added_tokens_decoder": {"320": token("<new>", lstrip=True, rstrip=True, special=True)}},
        {"added_tokens_decoder": {"330": token("<new>")}},
        {"added_tokens_decoder": {"321": token("MILL", normalized=True), "320": token("<new>"), "9": token("oslo")}},
        {"added_tokens_decoder": {"4": token("[MASK]", normalized=True, special=False)}},
        {"split_special_tokens": True}, {"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False},
    )),
    *(("wordpiece", {"/decoder/cleanup": False}, words(clean_up_tokenization_spaces=clean), {}) for clean in (True, False)),
    *(("bytebpe", BARE, GPT | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": clean}, {})
      for clean in (True, False)),
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
    ids = [fast(text)["input_ids"] for text in TEXTS]
    return {
        "tokenizer": name,
        "patch": patch,
        "config": config,
        "model": model,
        "ids": ids,
        "decoded": [fast.decode(row) for row in ids],
        "pair": pair["input_ids"],
        # The value that the model uses if the field is absent.
        "types": pair.get("token_type_ids", [0] * len(pair["input_ids"])),
    }


def ids_of_version_4():
    """Returns the ids of version 4, or null if it cannot read the folder."""
    with subprocess.Popen([os.environ["V4"], __file__, "ids"], stdout=subprocess.PIPE) as other:
        return json.loads(other.stdout.read())


def ids(*each):
    try:
        return case(*each)["ids"]
    except (ImportError, ValueError):
        return None


def main():
    if sys.argv[1:] == ["ids"]:
        print(json.dumps([ids(*each) for each in CASES]))
        return
    cases = [case(*each) for each in CASES]
    for each, before in zip(cases, ids_of_version_4(), strict=True):
        each["agrees"] = before and before == each["ids"]
    golden = {"versions": VERSIONS, "texts": TEXTS, "first": PAIR[0], "second": PAIR[1]}
    lines = [f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False)}" for key, value in golden.items()]
    rows = ",\n".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in cases)
    (HERE / "classes.json").write_text("{" + ",\n".join(lines) + ',\n"cases":[' + rows + "]}\n")


if __name__ == "__main__":
    main()
