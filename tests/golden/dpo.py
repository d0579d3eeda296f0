"""Losses, gradients, log-probabilities and rewards of trl's DPOTrainer, for models of `models/`.

Run by hand: python3 dpo.py   (writes dpo.json next to itself)

Label smoothing: recent versions of trl leave it out of the loss `sigmoid`. Their loss `aot` is the same formula over
sorted log-ratios, so of a batch of one pair it is `sigmoid` with label smoothing.
"""

import json
import logging
import pathlib
import tempfile

import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
VOCABULARY = 29
# Prompt, chosen and rejected answer as ids: ragged, with a prompt of one token, and answers of one token. The end token
# is 0.
PAIRS = [
    [[3, 7, 11], [5, 9], [6, 2, 2, 13]],
    [[4], [21, 8, 15, 16, 23], [28]],
    [[12, 2, 9, 9, 17], [1], [20, 25]],
]
CASES = [("gpt2", 0.1, 0.0), ("gpt2", 0.5, 0.2), ("gpt2-untied", 0.3, 0.0), ("llama", 0.1, 0.1), ("llama", 1.0, 0.0)]


def tokenizer():
    words = {f"w{number}": number for number in range(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w0", pad_token="w0")


def text(ids):
    return " ".join(f"w{number}" for number in ids)


def load(name):
    folder = HERE / "models" / name
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def trainer(name, beta, smoothing, folder):
    model, reference = load(name), load(name)
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    rows = [
        {"prompt": text(prompt), "chosen": " " + text(chosen + [0]), "rejected": " " + text(rejected + [0])}
        for prompt, chosen, rejected in PAIRS
    ]
    # trl's end token would be glued to the last word.
    args = trl.DPOConfig(
        output_dir=folder, beta=beta, label_smoothing=smoothing, loss_type=["aot" if smoothing else "sigmoid"],
        per_device_train_batch_size=len(PAIRS), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        max_length=None,
    )
    data = datasets.Dataset.from_list(rows)
    return trl.DPOTrainer(model, reference, args, train_dataset=data, processing_class=tokenizer())


def case(name, beta, smoothing):
    with tempfile.TemporaryDirectory() as folder:
        ours = trainer(name, beta, smoothing, folder)
        examples = [ours.train_dataset[at] for at in range(len(PAIRS))]
        for example, (prompt, chosen, rejected) in zip(examples, PAIRS, strict=True):
            found = [example[key] for key in ("prompt_ids", "chosen_ids", "rejected_ids")]
            assert found == [prompt, chosen + [0], rejected + [0]], found
        batches = [[example] for example in examples] if smoothing else [examples]
        model = ours.model.eval()
        model.zero_grad()
        reference, own, loss = [], [], 0
        for batch in batches:
            inputs = ours.data_collator(batch)
            answers = torch.stack(ours.compute_ref_log_probs(ours.ref_model, inputs), 1)
            reference += answers.flatten().tolist()
            with torch.no_grad():
                own += torch.stack(ours.compute_ref_log_probs(model, inputs), 1).flatten().tolist()
            mean = ours._compute_loss(model, inputs, False)
            loss = loss + mean * len(batch)
        loss.backward()
        mean_of = lambda name: sum(ours._metrics["eval"][name]) / len(batches)
        names = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        return {
            "folder": name, "beta": beta, "label_smoothing": smoothing, "log_probs": own, "reference": reference,
            "loss": loss.item(), "scores": {name: mean_of(name) for name in names},
            "gradient_norms": {key: float(f"{grad.double().norm():.8g}") for key, grad in gradients.items()},
        }


def main():
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    made_by = {module.__name__: module.__version__ for module in (trl, transformers, torch)}
    cases = [case(*settings) for settings in CASES]
    (HERE / "dpo.json").write_text(json.dumps({"made_by": made_by, "pairs": PAIRS, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
