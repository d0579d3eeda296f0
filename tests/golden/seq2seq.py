"""Like models.py, of further models with an encoder and a decoder.

Run by hand: python3 seq2seq.py   (writes models/FAMILY/ and models/seq2seq.json next to itself)
"""

import json

import torch
import transformers

from models import HERE, drawn, rows_of, save, seq2seq_case

HALF = torch.bfloat16


def mt5():
    shape = dict(
        vocab_size=29, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=10, decoder_start_token_id=0, attn_implementation="eager",
    )
    rows, targets = rows_of(29, 61), rows_of(29, 62)[::-1]
    model = drawn(transformers.MT5ForConditionalGeneration(transformers.MT5Config(**shape)), 61, HALF)
    cases = [seq2seq_case(model, side, rows, targets) for side in ("right", "left")]
    save(model, "mt5", HALF)
    yield "mt5", cases

    model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**shape, num_decoder_layers=1))
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    model = drawn(model, 63, HALF)
    cases = [seq2seq_case(model, "right", rows, targets)]
    # As the files on the Hub say it.
    save(model, "mt5-untied", HALF, config=lambda fields: fields.update(tie_word_embeddings=False))
    yield "mt5-untied", cases


def main():
    torch.set_num_threads(1)
    golden = [{"folder": name, "cases": cases} for name, cases in mt5()]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "seq2seq.json").write_text(json.dumps({"made_by": made_by, "models": golden}) + "\n")


if __name__ == "__main__":
    main()
