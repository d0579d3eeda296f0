"""Like models.py, of Gemma.

Run by hand: python3 gemma.py   (writes models/FAMILY/ and models/gemma.json next to itself)
"""

import json

import torch
import transformers

from models import HERE, LONGEST, causal_case, drawn, rows_of, save

HALF = torch.bfloat16
SHAPE = dict(
    vocab_size=29, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    max_position_embeddings=LONGEST, bos_token_id=0, eos_token_id=0, pad_token_id=0, attn_implementation="eager",
)


def centered(model):
    """Moves the scales of norms, which are drawn around 1, to 0: the model adds 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_((parameter - 1).to(HALF))
    return model


def family(name, model, seed, sides=("right", "left"), config=None):
    model, rows = centered(drawn(model, seed, HALF)), rows_of(29, seed)
    cases = [causal_case(model, side, rows, 0) for side in sides]
    save(model, name, HALF, config=config)
    return name, cases


def gemma2():
    # The caps are so low that they matter.
    config = transformers.Gemma2Config(
        **SHAPE, num_hidden_layers=3, sliding_window=4, query_pre_attn_scalar=5, attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0,
    )
    yield family("gemma2", transformers.Gemma2ForCausalLM(config), 71)

    config = transformers.Gemma2Config(
        **SHAPE, num_hidden_layers=2, sliding_window=4, query_pre_attn_scalar=6, attn_logit_softcapping=None,
        final_logit_softcapping=None, attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )

    # As transformers 4 wrote it: the tied head, a default, is absent.
    def older(fields):
        for name in ("layer_types", "tie_word_embeddings"):
            fields.pop(name)
        fields["rope_theta"] = fields.pop("rope_parameters")["rope_theta"]

    yield family("gemma2-uncapped", transformers.Gemma2ForCausalLM(config), 72, ("left",), older)


def gemma3():
    config = transformers.Gemma3TextConfig(
        **SHAPE, num_hidden_layers=3, sliding_window=4, query_pre_attn_scalar=5, final_logit_softcapping=3.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    yield family("gemma3", transformers.Gemma3ForCausalLM(config), 73)

    config = transformers.Gemma3TextConfig(
        **SHAPE, num_hidden_layers=4, sliding_window=3, query_pre_attn_scalar=6, sliding_window_pattern=3,
        tie_word_embeddings=False, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    )

    # As transformers 4 wrote it.
    def older(fields):
        fields.pop("layer_types")
        parameters = fields.pop("rope_parameters")
        fields["rope_theta"] = parameters["full_attention"].pop("rope_theta")
        fields["rope_scaling"] = parameters["full_attention"]
        fields["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        fields["sliding_window_pattern"] = 3

    yield family("gemma3-scaled", transformers.Gemma3ForCausalLM(config), 74, ("left",), older)


def main():
    torch.set_num_threads(1)
    golden = [{"folder": name, "cases": cases} for family in (gemma2(), gemma3()) for name, cases in family]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "gemma.json").write_text(json.dumps({"made_by": made_by, "models": golden}) + "\n")


if __name__ == "__main__":
    main()
