"""Opens with transformers the folders that runs of each family leave, and compares what their tokenizers encode.

Run by hand:
    FIREBRICK_SAVED=/tmp/saved cargo test --test program tokenizer_folders
    python3 opens_tokenizers.py /tmp/saved
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer


def main():
    for expected in sorted(pathlib.Path(sys.argv[1]).glob("*/pretrained/expected.json")):
        ours = json.loads(expected.read_text())
        tokenizer = AutoTokenizer.from_pretrained(expected.parent)
        name = expected.parent.parent.name
        config = json.loads((expected.parent / "tokenizer_config.json").read_text())
        assert [tokenizer(text)["input_ids"] for text in ours["texts"]] == ours["ids"], name
        pair = tokenizer(ours["texts"][0], ours["texts"][2])
        assert pair["input_ids"] == ours["pair"], name
        assert pair.get("token_type_ids", ours["types"]) == ours["types"], name
        assert list(pair) == config["model_input_names"], (name, list(pair))
        if "model_max_length" in config:
            assert tokenizer.model_max_length == config["model_max_length"], name
        for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
            assert getattr(tokenizer, f"{role}_token") == config.get(f"{role}_token"), (name, role)
        print(f"{name}: {type(tokenizer).__name__}, {sum(map(len, ours['ids']))} ids alike")


if __name__ == "__main__":
    main()
