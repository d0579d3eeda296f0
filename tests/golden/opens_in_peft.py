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
    """Those of a batch that ends in the last token, which a larger vocabulary has added."""
    ids = torch.arange(1, 9).reshape(2, 4)
    ids[1, 3] = model.get_input_embeddings().weight.shape[0] - 1
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **extra).logits


def main():
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        architecture = json.loads((folder / "given/config.json").read_text())["architectures"][0]
        opened = getattr(transformers, architecture).from_pretrained
        merged = opened(folder / "merged")
        tokens = merged.get_input_embeddings().weight.shape[0]

        def base():
            """The model, which must have as many tokens as the adapter before PEFT opens it."""
            model = opened(folder / "given")
            has_all = model.get_input_embeddings().weight.shape[0] == tokens
            if not has_all:
                model.resize_token_embeddings(tokens)
            return model, has_all

        (model, has_all), (other, _), merged = base(), base(), logits(merged)
        given, adapted = logits(model), peft.PeftModel.from_pretrained(other, folder / "adapter")
        apart = (logits(adapted) - merged).abs().max().item()
        # The adapter says of which model it is, and of which task. Beside its tokenizer, the model gets its tokens.
        task = peft.PeftConfig.from_pretrained(folder / "adapter").task_type
        if has_all or (folder / "adapter/tokenizer_config.json").exists():
            auto = AUTO.get(task, peft.AutoPeftModel).from_pretrained(folder / "adapter")
            apart = max(apart, (logits(auto) - merged).abs().max().item())
        changed = (merged - given).abs().max().item()
        assert apart < 1e-5 < 1e-2 < changed, (folder, apart, changed)
        print(f"{folder.name}: {architecture}, logits differ by {apart:.1e}, of which training changed {changed:.1e}")


if __name__ == "__main__":
    main()
