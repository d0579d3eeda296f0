"""Tiny random decoders as Hugging Face folders, and what transformers computes with them.

Run by hand: python3 decoders.py   (writes models/FAMILY/ and models/decoders.json next to itself)
"""

import json

import torch
import transformers

from models import HERE, LONGEST, causal_case, drawn, rows_of, save

HALF = torch.bfloat16
SHAPE = dict(
    vocab_size=29, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=LONGEST, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    attn_implementation="eager",
)


def family(name, model, seed, sides=("right", "left")):
    model, rows = drawn(model, seed, HALF), rows_of(29, seed)
    cases = [causal_case(model, side, rows, 0) for side in sides]
    save(model, name, HALF)
    return name, cases


def windows():
    config = transformers.MistralConfig(**SHAPE, sliding_window=4)
    yield family("mistral", transformers.MistralForCausalLM(config), 51)

    config = transformers.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=3, max_window_layers=1, tie_word_embeddings=True
    )
    yield family("qwen2-windows", transformers.Qwen2ForCausalLM(config), 52, ("left",))


def qwen3():
    config = transformers.Qwen3Config(**SHAPE, head_dim=6)
    yield family("qwen3", transformers.Qwen3ForCausalLM(config), 53)

    config = transformers.Qwen3Config(
        **SHAPE, head_dim=6, tie_word_embeddings=True, attention_bias=True, use_sliding_window=True,
        sliding_window=5, max_window_layers=1,
    )
    yield family("qwen3-windows", transformers.Qwen3ForCausalLM(config), 54, ("left",))


def phi3():
    config = transformers.Phi3Config(**SHAPE, sliding_window=4)
    yield family("phi3", transformers.Phi3ForCausalLM(config), 55)

    # As in Phi-4 mini: a part of each head is rotated, by the factors of the original context.
    shape = {**SHAPE, "hidden_size": 32, "max_position_embeddings": 48}
    config = transformers.Phi3Config(
        **shape, original_max_position_embeddings=LONGEST, partial_rotary_factor=0.75, tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.5, 2.0],
            "long_factor": [2.0, 5.0, 9.0], "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": LONGEST,
        },
    )
    yield family("phi3-longrope", transformers.Phi3ForCausalLM(config), 56)


def main():
    torch.set_num_threads(1)
    families = (windows(), qwen3(), phi3())
    golden = [{"folder": name, "cases": cases} for family in families for name, cases in family]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "decoders.json").write_text(json.dumps({"made_by": made_by, "models": golden}) + "\n")


if __name__ == "__main__":
    main()
