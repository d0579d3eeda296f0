"""What transformers computes with rotations that are scaled for longer contexts, within and beyond the original one.

Run by hand: python3 rotations.py   (writes models/rotations.json next to itself)

The weights are those of folders in models/, whose configurations it changes. With transformers 4, it compares what that
version computes with the file.
"""

import copy
import json

import torch
import transformers
from torch.nn import functional

from models import HERE, numbers

# Rows of at most this many tokens are within the context.
CONTEXT = 12
ROWS = [[(7 * row + 5 * at * at + 3 * at) % 27 + 2 for at in range(n)] for row, n in enumerate((9, 12, 13, 14, 40))]
# The logits of so many last tokens are kept.
LAST = 3
WRITTEN = 10

LLAMA = {"rope_parameters": None, "rope_theta": 100.0, "max_position_embeddings": CONTEXT}
LONGER = {"max_position_embeddings": 48}
ORIGINAL = {"original_max_position_embeddings": CONTEXT}
LONG = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
CASES = {
    "linear": ("llama", LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "dynamic": ("llama", LLAMA | {"rope_scaling": DYNAMIC}),
    "yarn": ("llama", LLAMA | LONGER | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0} | ORIGINAL}),
    "llama3": ("llama", LLAMA | LONGER | {"rope_scaling": LLAMA3 | ORIGINAL}),
    "longrope": ("llama", LLAMA | LONGER | ORIGINAL | {"rope_scaling": {"rope_type": "longrope"} | LONG}),
    "longrope of a Phi-3": ("phi3-longrope", {}),
}
# Only transformers 5 has scalings for types of blocks.
BY_BLOCKS = {
    "dynamic in some blocks": (
        "gemma3",
        {"rope_parameters": {"full_attention": DYNAMIC | {"rope_theta": 100.0}, "sliding_attention": PLAIN}},
    ),
}


def opened(folder, settings):
    """A model that has not read anything: `dynamic` remembers the longest row."""
    fields = json.loads((HERE / folder / "config.json").read_text()) | copy.deepcopy(settings)
    fields = {name: value for name, value in fields.items() if value is not None}
    parameters = fields.get("rope_parameters", {})
    if transformers.__version__ < "5" and parameters:
        # transformers 4 reads neither parameters nor the base among them.
        parameters = dict(parameters)
        parameters["type"] = parameters.pop("rope_type")
        fields |= {"rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}
        del fields["rope_parameters"]
        for name in ("original_max_position_embeddings", "partial_rotary_factor"):
            parameters.pop(name, None)
    architecture = getattr(transformers, fields["architectures"][0])
    config = architecture.config_class.from_dict(fields)
    config._attn_implementation = "eager"
    return architecture.from_pretrained(HERE / folder, config=config, dtype=torch.float32).eval()


def of(folder, settings):
    rows = []
    for tokens in ROWS:
        model, ids = opened(folder, settings), torch.tensor([tokens])
        logits = model(input_ids=ids).logits
        loss = functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
        loss.backward()
        squares = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
        rows.append({
            "tokens": tokens, "logits": numbers(logits[0, -LAST:]), "loss": loss.item(),
            "gradient_norm": squares.sqrt().item(),
        })
    return {"rows": rows, "written": written(folder, settings)}


def written(folder, settings):
    """The likeliest tokens after the first row, and the logarithm of their probability."""
    prompt = torch.tensor([ROWS[0]])
    if settings.get("rope_scaling", {}).get("rope_type") == "longrope":
        # Beyond the context, a cache keeps the angles of shorter rows; only Phi-3 discards it there.
        tokens, logits = prompt, []
        for _ in range(WRITTEN):
            logits.append(opened(folder, settings)(input_ids=tokens).logits[:, -1])
            tokens = torch.cat([tokens, logits[-1].argmax(1, keepdim=True)], 1)
    else:
        found = opened(folder, settings).generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=WRITTEN, pad_token_id=0,
            eos_token_id=99, return_dict_in_generate=True, output_logits=True,
        )
        tokens, logits = found.sequences, found.logits
    probability = sum(row.log_softmax(1).max().item() for row in logits)
    return {"tokens": tokens[0, len(ROWS[0]):].tolist(), "log_probability": probability}


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    file = HERE / "rotations.json"
    if transformers.__version__ < "5":
        for model in json.loads(file.read_text())["models"]:
            if model["name"] not in CASES:
                continue
            found = of(*CASES[model["name"]])
            pairs = [(row["logits"], other["logits"]) for row, other in zip(model["rows"], found["rows"])]
            apart = max(abs(a - b) for left, right in pairs for a, b in zip(left, right))
            texts = [model["written"], found["written"]]
            print(f"{model['name']}: logits differ by {apart:.1e}, texts {texts}")
            # transformers 4 loses its place when it discards the cache of a Phi-3.
            assert apart < 1e-5 and (texts[0] == texts[1] or "Phi-3" in model["name"]), model["name"]
        return
    models = [
        {"name": name, "folder": folder, "settings": settings, **of(folder, settings)}
        for name, (folder, settings) in (CASES | BY_BLOCKS).items()
    ]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(json.dumps(model) for model in models)
    file.write_text(f'{{"made_by": {json.dumps(made_by)}, "models": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
