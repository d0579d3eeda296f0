"""Opens with transformers what Firebrick saved of the models of models.py and of the scripts beside it that are like
it, and compares what it computes.

Run by hand:
    FIREBRICK_SAVED=/tmp/saved cargo test --test training pretrained_folders
    python3 opens_in_transformers.py /tmp/saved
"""

import json
import pathlib
import sys

import bart
import encoders
import models
import transformers


def again(model, case):
    if case["task"] == "causal":
        return models.causal_case(model, case["side"], case["rows"], 0)
    if model.config.model_type == "bart":
        return bart.bart_case(model, case["side"], case["rows"], case["targets"])
    if case["task"] == "seq2seq":
        return models.seq2seq_case(model, case["side"], case["rows"], case["targets"])
    pad = model.config.pad_token_id
    if model.config.model_type in ("distilbert", "modernbert"):
        model = encoders.WithoutSegments(model)
    return models.encoder_case(
        model, case["task"], case["side"], case["rows"], case["types"], case["labels"], pad
    )


def furthest(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other))


def main():
    saved = pathlib.Path(sys.argv[1])
    names = ("bart", "cases", "decoders", "encoders", "gemma", "seq2seq")
    files = [models.HERE / f"{name}.json" for name in names]
    for golden in [golden for file in files for golden in json.loads(file.read_text())["models"]]:
        folder = saved / golden["folder"]
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        model, report = getattr(transformers, architecture).from_pretrained(
            folder, attn_implementation="eager", output_loading_info=True
        )
        assert not any(report.values()), (folder, report)
        model.eval()
        for case in golden["cases"]:
            found = again(model, case)
            error = furthest(found["logits"], case["logits"])
            # The values have six digits, and processors sum in different orders.
            assert error < 5e-6, (folder, error)
            assert found["gradient_norms"].keys() == case["gradient_norms"].keys(), folder
        print(f"{golden['folder']}: {architecture}, logits differ by at most {error:.1e}")


if __name__ == "__main__":
    main()
