"""Like models.py, of BART: also losses of smoothed labels, and texts that transformers writes.

Run by hand: python3 bart.py   (writes models/bart*/ and models/bart.json next to itself)

transformers takes a token's column as its position, so that padding a row at the left moves its tokens. Rows that are to
be padded at the left are computed one at a time here.
"""

import json

import torch
import transformers
from torch.nn import functional

from models import HERE, IGNORE, drawn, padded, real, result, rows_of, save

PAD, START, END, LONGEST = 1, 2, 2, 13
SMOOTHING = 0.1


def logits_of(model, rows, targets):
    """The logits of the real tokens of some rows, padded at the right."""
    mask = real(targets, "right")
    logits = model(
        input_ids=padded(rows, "right", PAD),
        attention_mask=real(rows, "right"),
        decoder_input_ids=padded([[START] + target[:-1] for target in targets], "right", PAD),
        decoder_attention_mask=mask,
    ).logits
    return logits[mask.bool()]


def bart_case(model, side, rows, targets):
    if side == "left":
        alone = zip(rows, targets, strict=True)
        logits = torch.cat([logits_of(model, [row], [target]) for row, target in alone])
    else:
        logits = logits_of(model, rows, targets)
    labels = torch.tensor([token for target in targets for token in target])
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    smoothed = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=SMOOTHING).item()
    case = {"task": "seq2seq", "side": side, "rows": rows, "targets": targets, "pad": PAD, "start": START}
    return {**case, **result(model, logits, loss), "smoothing": SMOOTHING, "smoothed_loss": smoothed}


def texts_of(model, rows, **settings):
    """The texts that are written from some rows, without the first token and what follows an end, and their scores."""
    found = model.generate(
        padded(rows, "right", PAD), attention_mask=real(rows, "right"), do_sample=False, max_new_tokens=9, pad_token_id=PAD,
        eos_token_id=END, decoder_start_token_id=START, return_dict_in_generate=True, output_scores=True, **settings,
    )
    texts = []
    for tokens in found.sequences[:, 1:].tolist():
        end = tokens.index(END) + 1 if END in tokens else len(tokens)
        texts.append(tokens[:end])
    scores = found.sequences_scores.tolist() if "sequences_scores" in found else None
    return {"settings": settings, "tokens": texts, "scores": scores}


def bart():
    shape = dict(
        vocab_size=29, max_position_embeddings=LONGEST, d_model=16, encoder_layers=2, encoder_ffn_dim=24,
        encoder_attention_heads=4, decoder_layers=2, decoder_ffn_dim=20, decoder_attention_heads=2, pad_token_id=PAD,
        bos_token_id=0, eos_token_id=END, decoder_start_token_id=START, attn_implementation="eager",
    )
    rows, targets = rows_of(29, 71), rows_of(29, 72)[::-1]
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**shape, forced_bos_token_id=0))
    model = drawn(model, 71, torch.bfloat16)
    generator = torch.Generator().manual_seed(74)
    model.final_logits_bias.copy_(torch.randn(1, 29, generator=generator).to(torch.bfloat16))
    cases = [bart_case(model, side, rows, targets) for side in ("right", "left")]
    texts = [
        texts_of(model, rows, num_beams=beams, forced_bos_token_id=first, forced_eos_token_id=last)
        for beams in (1, 3)
        for first, last in ((None, None), (0, None), (None, END), (0, END))
    ]
    save(model, "bart", torch.bfloat16)
    yield {"folder": "bart", "cases": cases, "texts": texts}

    # As the first files are: without a prefix and the bias.
    config = transformers.BartConfig(
        **{**shape, "decoder_layers": 1, "activation_function": "relu", "scale_embedding": True, "dropout": 0.0,
           "attention_dropout": 0.1, "activation_dropout": 0.2}
    )
    model = drawn(transformers.BartForConditionalGeneration(config), 73, torch.float16)
    cases = [bart_case(model, "right", rows, targets)]
    save(model, "bart-scaled", torch.float16, rename=lambda name: name.removeprefix("model."), without=["final_logits_bias"])
    yield {"folder": "bart-scaled", "cases": cases}


def main():
    torch.set_num_threads(1)
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "bart.json").write_text(json.dumps({"made_by": made_by, "models": list(bart())}) + "\n")


if __name__ == "__main__":
    main()
