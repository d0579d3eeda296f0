"""Tiny random models of each family as Hugging Face folders, and what transformers computes with them.

Run by hand: python3 models.py   (writes models/FAMILY/ and models/cases.json next to itself)
"""

import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional

HERE = pathlib.Path(__file__).parent / "models"
IGNORE = -100
LENGTHS = (5, 12, 2, 8)
LONGEST = 12


def drawn(model, seed, dtype=torch.float32):
    """Weights of a size that makes a difference, exact in dtype."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and "bias" not in name
            values = 1 + 0.1 * values if is_norm else values * (0.25 if parameter.dim() > 1 else 0.1)
            parameter.copy_(values.to(dtype))
    model.eval()
    return model


def rows_of(vocabulary, seed, special=0, first=2):
    """Ragged rows of token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(first, vocabulary - special, (n,), generator=generator).tolist() for n in LENGTHS]


def padded(rows, side, pad, length=None):
    length = length or max(map(len, rows))
    if side == "left":
        return torch.tensor([[pad] * (length - len(row)) + row for row in rows])
    return torch.tensor([row + [pad] * (length - len(row)) for row in rows])


def real(rows, side):
    return padded([[1] * len(row) for row in rows], side, 0)


def numbers(tensor):
    return [round(x, 6) for x in tensor.detach().flatten().tolist()]


def result(model, logits, loss):
    """Loss, and the norm of each parameter's gradient by the name that it is saved under."""
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norms = {name: float(f"{grad.double().norm():.8g}") for name, grad in gradients.items()}
    return {"logits": numbers(logits), "loss": loss.item(), "gradient_norms": norms}


def save(model, name, dtype=torch.float32, shards=0, rename=None, extra=None, config=None, without=()):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shards or "1GB")
    model.float()
    (folder / "generation_config.json").unlink(missing_ok=True)
    if rename or extra or without:
        tensors = load_file(folder / "model.safetensors")
        tensors = {key: value for key, value in tensors.items() if key not in without}
        tensors = {rename(key) if rename else key: value for key, value in tensors.items()}
        save_file({**tensors, **(extra or {})}, folder / "model.safetensors", metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (config or (lambda fields: None))(fields)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")


def encoder_inputs(rows, types, side, pad):
    return {
        "input_ids": padded(rows, side, pad),
        "attention_mask": real(rows, side),
        "token_type_ids": padded(types, side, 0),
    }


def encoder_case(model, task, side, rows, types, labels, pad):
    """Of a label for each token, or hidden tokens; or of each row: a class, several or a number."""
    logits = model(**encoder_inputs(rows, types, side, pad)).logits
    if task in ("tokens", "masked_lm"):
        target = padded(labels, side, IGNORE)
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        logits = logits[real(rows, side).bool()]
    elif task == "class":
        loss = functional.cross_entropy(logits, torch.tensor(labels), reduction="sum")
    elif task == "classes":
        hot = torch.zeros_like(logits)
        for row, classes in enumerate(labels):
            hot[row, classes] = 1
        loss = functional.binary_cross_entropy_with_logits(logits, hot, reduction="sum")
    else:
        loss = functional.mse_loss(logits[:, 0], torch.tensor(labels), reduction="sum")
    case = {"task": task, "side": side, "rows": rows, "types": types, "labels": labels}
    return {**case, **result(model, logits, loss)}


def token_labels(rows, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = [torch.randint(0, classes, (len(row),), generator=generator).tolist() for row in rows]
    return [[IGNORE if at % 3 == 2 else label for at, label in enumerate(row)] for row in labels]


def causal_case(model, side, rows, pad):
    mask = real(rows, side)
    ids = padded(rows, side, pad)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=places).logits
    labels = ids.masked_fill(mask == 0, IGNORE)
    for row, tokens in enumerate(rows):
        labels[row, ids.shape[1] - len(tokens) if side == "left" else 0] = IGNORE
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    case = {"task": "causal", "side": side, "rows": rows}
    return {**case, **result(model, logits[mask.bool()], loss)}


def seq2seq_case(model, side, rows, targets, pad=0):
    decoder = [[pad] + target[:-1] for target in targets]
    mask = real(targets, side)
    logits = model(
        input_ids=padded(rows, side, pad),
        attention_mask=real(rows, side),
        decoder_input_ids=padded(decoder, side, pad),
        decoder_attention_mask=mask,
    ).logits
    labels = padded(targets, side, IGNORE)
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    case = {"task": "seq2seq", "side": side, "rows": rows, "targets": targets}
    return {**case, **result(model, logits[mask.bool()], loss)}


def bert_family():
    shape = dict(
        vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        attn_implementation="eager",
    )
    rows = rows_of(29, 1)
    types = [[int(at > len(row) // 2) for at in range(len(row))] for row in rows]
    zeros = [[0] * len(row) for row in rows]

    bert = dict(shape, max_position_embeddings=LONGEST, pad_token_id=0)
    model = drawn(transformers.BertForTokenClassification(transformers.BertConfig(**bert, num_labels=5)), 11)
    labels = token_labels(rows, 5, 2)
    cases = [encoder_case(model, "tokens", side, rows, types, labels, 0) for side in ("right", "left")]
    save(model, "bert-tokens")
    yield "bert-tokens", cases

    # As early files are: norms with TensorFlow's names, no prefix, a buffer, and the head of another task.
    half = torch.float16
    config = transformers.BertConfig(**bert, num_labels=3, hidden_act="gelu_new")
    model = drawn(transformers.BertForSequenceClassification(config), 12, half)
    cases = [
        encoder_case(model, "class", "right", rows, types, [2, 0, 1, 2], 0),
        encoder_case(model, "classes", "right", rows, types, [[0, 2], [], [1], [0, 1, 2]], 0),
    ]

    def rename(name):
        name = name.removeprefix("bert.")
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    extra = {"embeddings.position_ids": torch.arange(LONGEST)[None], "cls.predictions.bias": torch.zeros(29)}
    save(model, "bert-sequence", half, rename=rename, extra=extra)
    yield "bert-sequence", cases

    half = torch.bfloat16
    model = drawn(transformers.BertForMaskedLM(transformers.BertConfig(**bert)), 13, half)
    labels = token_labels(rows, 29, 3)
    cases = [encoder_case(model, "masked_lm", side, rows, types, labels, 0) for side in ("right", "left")]
    save(model, "bert-masked-lm", half, shards="6KB")
    yield "bert-masked-lm", cases

    roberta = dict(shape, max_position_embeddings=LONGEST + 2, type_vocab_size=1, pad_token_id=1)
    model = drawn(transformers.RobertaForMaskedLM(transformers.RobertaConfig(**roberta)), 14, half)
    cases = [encoder_case(model, "masked_lm", side, rows, zeros, labels, 1) for side in ("right", "left")]
    save(model, "roberta-masked-lm", half)
    yield "roberta-masked-lm", cases

    model = transformers.XLMRobertaForSequenceClassification(
        transformers.XLMRobertaConfig(**roberta, num_labels=1)
    )
    model = drawn(model, 15, half)
    cases = [encoder_case(model, "number", "right", rows, zeros, [0.5, -1.0, 2.0, 0.0], 1)]
    save(model, "xlm-roberta-sequence", half)
    yield "xlm-roberta-sequence", cases


def gpt2_family():
    shape = dict(
        vocab_size=29, n_positions=LONGEST, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager",
    )
    rows = rows_of(29, 4)
    half = torch.bfloat16
    model = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)), 21, half)
    cases = [causal_case(model, side, rows, 0) for side in ("right", "left")]
    save(model, "gpt2", half)
    yield "gpt2", cases

    config = transformers.GPT2Config(
        **shape, n_inner=24, activation_function="relu", layer_norm_epsilon=1e-3, tie_word_embeddings=False
    )
    model = drawn(transformers.GPT2LMHeadModel(config), 22, half)
    cases = [causal_case(model, "right", rows, 0)]
    save(model, "gpt2-untied", half, rename=lambda name: name.removeprefix("transformer."))
    yield "gpt2-untied", cases


def llama_family():
    shape = dict(
        vocab_size=29, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=LONGEST, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
    )
    rows = rows_of(29, 5)
    half = torch.bfloat16
    model = drawn(transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=2)), 31)
    cases = [causal_case(model, side, rows, 0) for side in ("right", "left")]
    save(model, "llama")
    yield "llama", cases

    # As transformers 4 wrote it.
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    }
    config = transformers.LlamaConfig(
        **shape, num_key_value_heads=1, head_dim=6, tie_word_embeddings=True, mlp_bias=True,
        rope_parameters={**scaling, "rope_theta": 500.0},
    )
    model = drawn(transformers.LlamaForCausalLM(config), 32, half)
    cases = [causal_case(model, "left", rows, 0)]

    def older(fields):
        parameters = fields.pop("rope_parameters")
        fields["rope_theta"] = parameters.pop("rope_theta")
        fields["rope_scaling"] = parameters

    save(model, "llama3", half, config=older)
    yield "llama3", cases

    config = transformers.Qwen2Config(
        **shape, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    )
    model = drawn(transformers.Qwen2ForCausalLM(config), 33, half)
    cases = [causal_case(model, "right", rows, 0)]
    save(model, "qwen2", half)
    yield "qwen2", cases


def t5_family():
    shape = dict(
        vocab_size=29, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=10, decoder_start_token_id=0, attn_implementation="eager",
    )
    rows, targets = rows_of(29, 6), rows_of(29, 7)[::-1]
    half = torch.bfloat16
    model = drawn(transformers.T5ForConditionalGeneration(transformers.T5Config(**shape)), 41, half)
    cases = [seq2seq_case(model, side, rows, targets) for side in ("right", "left")]
    save(model, "t5", half)
    yield "t5", cases

    config = transformers.T5Config(
        **shape, num_decoder_layers=1, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    )
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    model = drawn(model, 42, half)
    cases = [seq2seq_case(model, "right", rows, targets)]
    # As the files on the Hub say it.
    save(model, "t5-untied", half, config=lambda fields: fields.update(tie_word_embeddings=False))
    yield "t5-untied", cases


def main():
    torch.set_num_threads(1)
    families = (bert_family(), gpt2_family(), llama_family(), t5_family())
    golden = [{"folder": name, "cases": cases} for family in families for name, cases in family]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "cases.json").write_text(json.dumps({"made_by": made_by, "models": golden}) + "\n")


if __name__ == "__main__":
    main()
