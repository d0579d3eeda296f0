"""Puts factors that Firebrick saved onto the models that they are of, with PEFT, and compares what comes out with the
merged models.

Run by hand:
    FIREBRICK_ADAPTED=/tmp/adapted cargo test --test training peft
    python3 opens_in_peft.py /tmp/adapted
"""

import json
import pathlib
import sys

import peft
import torch
import transformers


AUTO = {
    "CAUSAL_LM": peft.AutoPeftModelForCausalLM,
    "SEQ_2_SEQ_LM": peft.AutoPeftModelForSeq2SeqLM,
    "SEQ_CLS": peft.AutoPeftModelForSequenceClassification,
    "TOKEN_CLS": peft.AutoPeftModelForTokenClassification,
}


def logits(model):
    ids = torch.arange(1, 9).reshape(2, 4)
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **extra).logits


def main():
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        architecture = json.loads((folder / "given/config.json").read_text())["architectures"][0]
        opened = getattr(transformers, architecture).from_pretrained
        given = logits(opened(folder / "given"))
        adapted = peft.PeftModel.from_pretrained(opened(folder / "given"), folder / "adapter")
        merged = logits(opened(folder / "merged"))
        apart = (logits(adapted) - merged).abs().max().item()
        # The adapter says of which model it is, and of which task.
        task = peft.PeftConfig.from_pretrained(folder / "adapter").task_type
        auto = AUTO.get(task, peft.AutoPeftModel).from_pretrained(folder / "adapter")
        apart = max(apart, (logits(auto) - merged).abs().max().item())
        changed = (merged - given).abs().max().item()
        assert apart < 1e-5 < 1e-2 < changed, (folder, apart, changed)
        print(f"{folder.name}: {architecture}, logits differ by {apart:.1e}, of which training changed {changed:.1e}")


if __name__ == "__main__":
    main()
