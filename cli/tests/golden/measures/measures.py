"""A tiny random GPT-2 with a tokenizer, and its measures by transformers and the formulas of lm-evaluation-harness.

Run by hand: python3 measures.py   (writes next to itself)
"""

import json
import math
import pathlib

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TEXT = """Two men play football in the park while a small dog runs through the snow.
The children watch from a bench, and one of them laughs at the dog.
Later the rain begins, so everyone walks home; only the dog stays, happy and wet.
"""
CHOICES = [
    ("The dog runs through", ["the snow.", "a bench, and one of them laughs", "rain"], 2),
    ("Two men play", ["home", "football in the park.", "the dog the dog the dog"], 2),
    ("Later the rain begins, ", ["so everyone walks home", "a small dog"], 1),
    ("", ["The children watch from a bench.", "wet wet wet"], 0),
    # Longer than the model reads.
    (TEXT[:150], ["only the dog stays", "one of them", "happy and wet, happy and wet"], 0),
]
WINDOWS = [(24, 12), (16, 5), (32, 31)]
POSITIONS = 32


def tokenizer():
    of = Tokenizer(models.BPE())
    of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    of.train_from_iterator([TEXT], trainer)
    of.save(str(HERE / "model" / "tokenizer.json"))
    return of


def model():
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    of = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in of.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    of.save_pretrained(HERE / "model")
    return of


def log_probabilities(of, ids):
    """The log probability of each token but the first, after those before it."""
    logits = of(torch.tensor([ids])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def perplexity(of, ids, window, stride):
    """https://huggingface.co/docs/transformers/perplexity, with each token's loss counted once."""
    loss, tokens, done = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        counted = end - done
        # The first token of the text has no probability.
        part = log_probabilities(of, ids[begin:end])[-counted:]
        loss, tokens, done = loss - part.sum().item(), tokens + len(part), end
        if end == len(ids):
            break
    assert tokens == len(ids) - 1
    mean = loss / tokens
    return {"window": window, "stride": stride, "loss": mean, "perplexity": math.exp(mean)}


def log_likelihood(of, encode, context, ending):
    """lm_eval.api.model.TemplateLM._encode_pair and HFLM._loglikelihood_tokens."""
    continuation = " " + ending
    if context == "":
        before, after = [0], encode(continuation)
    else:
        spaces = len(context) - len(context.rstrip())
        if spaces > 0:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole, before = encode(context + continuation), encode(context)
        after = whole[len(before) :]
    read = (before + after)[-(POSITIONS + 1) :]
    if len(read) <= POSITIONS:
        return log_probabilities(of, read)[-len(after) :].sum().item()
    logits = of(torch.tensor([read[:-1]])).logits[0].double().log_softmax(-1)
    return logits.gather(1, torch.tensor(read[1:])[:, None])[:, 0][-len(after) :].sum().item()


def main():
    (HERE / "model").mkdir(exist_ok=True)
    words, of = tokenizer(), model()
    encode = lambda text: words.encode(text, add_special_tokens=False).ids
    acc = acc_norm = 0
    with torch.no_grad():
        expected = {"windows": [perplexity(of, encode(TEXT), window, stride) for window, stride in WINDOWS]}
        for context, endings, label in CHOICES:
            likely = torch.tensor([log_likelihood(of, encode, context, ending) for ending in endings])
            length = torch.tensor([float(len(ending)) for ending in endings])
            print([round(x, 3) for x in likely.tolist()], label)
            acc += int(likely.argmax()) == label
            acc_norm += int((likely / length).argmax()) == label
    expected["choices"] = {"acc": acc / len(CHOICES), "acc_norm": acc_norm / len(CHOICES)}
    (HERE / "text.txt").write_text(TEXT)
    lines = [json.dumps({"ctx": c, "endings": e, "label": label}) for c, e, label in CHOICES]
    (HERE / "choices.jsonl").write_text("\n".join(lines) + "\n")
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(json.dumps(expected, indent=1))


main()
