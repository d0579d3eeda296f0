"""Like models.py, of DistilBERT, ELECTRA, ModernBERT and DeBERTa.

Run by hand: python3 encoders.py   (writes models/FAMILY/ and models/encoders.json next to itself)
"""

import json

import models
import torch
import transformers

BOTH = ("right", "left")
CLASSES = [2, 0, 1, 2]


class WithoutSegments(torch.nn.Module):
    """A model that takes no segments."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)

    def named_parameters(self, *args, **kwargs):
        return self.model.named_parameters(*args, **kwargs)


def distilbert_family():
    config = dict(
        vocab_size=29, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=models.LONGEST,
        attn_implementation="eager",
    )
    rows = models.rows_of(29, 51)
    zeros = [[0] * len(row) for row in rows]
    half = torch.bfloat16

    def made(head, seed, **more):
        model = getattr(transformers, f"DistilBertFor{head}")(transformers.DistilBertConfig(**config, **more))
        return models.drawn(model, seed, half)

    def case(model, task, side, labels):
        return models.encoder_case(WithoutSegments(model), task, side, rows, zeros, labels, 0)

    model, labels = made("MaskedLM", 51, activation="relu"), models.token_labels(rows, 29, 52)
    cases = [case(model, "masked_lm", side, labels) for side in BOTH]
    models.save(model, "distilbert-masked-lm", half)
    yield "distilbert-masked-lm", cases

    model, labels = made("TokenClassification", 53, num_labels=5), models.token_labels(rows, 5, 54)
    cases = [case(model, "tokens", side, labels) for side in BOTH]
    models.save(model, "distilbert-tokens", half)
    yield "distilbert-tokens", cases

    model = made("SequenceClassification", 55, num_labels=3)
    cases = [case(model, "class", "right", CLASSES)]
    models.save(model, "distilbert-sequence", half)
    yield "distilbert-sequence", cases


def electra_family():
    config = dict(
        vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=models.LONGEST, attn_implementation="eager",
    )
    rows = models.rows_of(29, 61)
    types = [[int(at > len(row) // 2) for at in range(len(row))] for row in rows]
    half = torch.bfloat16

    def made(head, seed, **more):
        model = getattr(transformers, f"ElectraFor{head}")(transformers.ElectraConfig(**config, **more))
        return models.drawn(model, seed, half)

    def case(model, task, side, labels):
        return models.encoder_case(model, task, side, rows, types, labels, 0)

    model, labels = made("MaskedLM", 61, embedding_size=8), models.token_labels(rows, 29, 62)
    cases = [case(model, "masked_lm", side, labels) for side in BOTH]
    models.save(model, "electra-masked-lm", half)
    yield "electra-masked-lm", cases

    model = made("TokenClassification", 63, embedding_size=16, num_labels=5)
    labels = models.token_labels(rows, 5, 64)
    cases = [case(model, "tokens", side, labels) for side in BOTH]
    models.save(model, "electra-tokens", half)
    yield "electra-tokens", cases

    model = made("SequenceClassification", 65, embedding_size=24, num_labels=3)
    cases = [case(model, "class", "right", CLASSES)]
    models.save(model, "electra-sequence", half)
    yield "electra-sequence", cases


def modernbert_family():
    config = dict(
        vocab_size=29, hidden_size=16, num_hidden_layers=4, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=models.LONGEST, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=1,
        cls_token_id=1, sep_token_id=1, attn_implementation="eager",
    )
    rows = models.rows_of(29, 71)
    zeros = [[0] * len(row) for row in rows]
    half = torch.bfloat16

    def made(head, seed, **more):
        config_of = transformers.ModernBertConfig(**config, **more)
        return models.drawn(getattr(transformers, f"ModernBertFor{head}")(config_of), seed, half)

    def case(model, task, side, labels):
        return models.encoder_case(WithoutSegments(model), task, side, rows, zeros, labels, 0)

    # As transformers 4 wrote it.
    def older(fields):
        parameters = fields.pop("rope_parameters")
        fields["global_rope_theta"] = parameters["full_attention"]["rope_theta"]
        fields["local_rope_theta"] = parameters["sliding_attention"]["rope_theta"]
        fields.pop("layer_types")
        fields["global_attn_every_n_layers"] = 3

    model, labels = made("MaskedLM", 71), models.token_labels(rows, 29, 72)
    cases = [case(model, "masked_lm", side, labels) for side in BOTH]
    models.save(model, "modernbert-masked-lm", half, config=older)
    yield "modernbert-masked-lm", cases

    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    more = dict(
        norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, layer_types=types,
        rope_parameters=parameters, hidden_activation="silu", classifier_activation="relu",
    )
    model, labels = made("TokenClassification", 73, num_labels=5, **more), models.token_labels(rows, 5, 74)
    cases = [case(model, "tokens", side, labels) for side in BOTH]
    models.save(model, "modernbert-tokens", half)
    yield "modernbert-tokens", cases

    model = made("SequenceClassification", 75, num_labels=3)
    cases = [case(model, "class", "right", CLASSES)]
    models.save(model, "modernbert-sequence", half)
    yield "modernbert-sequence", cases

    model = made("SequenceClassification", 76, num_labels=3, classifier_pooling="mean")
    cases = [case(model, "class", side, CLASSES) for side in BOTH]
    models.save(model, "modernbert-sequence-mean", half)
    yield "modernbert-sequence-mean", cases


def deberta_family():
    config = dict(
        vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=models.LONGEST, pad_token_id=0, relative_attention=True, attn_implementation="eager",
    )
    third = dict(
        position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p",
        position_biased_input=False,
    )
    rows = models.rows_of(29, 81)
    types = [[int(at > len(row) // 2) for at in range(len(row))] for row in rows]
    half = torch.bfloat16

    def made(head, seed, **more):
        config_of = transformers.DebertaV2Config(**config, **more)
        return models.drawn(getattr(transformers, f"DebertaV2For{head}")(config_of), seed, half)

    def case(model, task, side, labels):
        return models.encoder_case(model, task, side, rows, types, labels, 0)

    # As the files on the Hub say it.
    def joined(fields):
        fields["pos_att_type"] = "|".join(fields["pos_att_type"])

    labels = models.token_labels(rows, 29, 82)
    for name, seed, legacy in (("deberta-masked-lm", 81, True), ("deberta-masked-lm-new", 83, False)):
        model = made("MaskedLM", seed, **third, legacy=legacy)
        cases = [case(model, "masked_lm", side, labels) for side in BOTH]
        models.save(model, name, half, config=joined)
        yield name, cases

    second = dict(pos_att_type=["c2p", "p2c"], max_relative_positions=5, type_vocab_size=2)
    model, labels = made("TokenClassification", 84, num_labels=5, **second), models.token_labels(rows, 5, 85)
    cases = [case(model, "tokens", side, labels) for side in BOTH]
    models.save(model, "deberta-tokens", half)
    yield "deberta-tokens", cases

    # As the largest of the second version.
    convolved = dict(third, conv_kernel_size=3, conv_act="gelu")
    model, labels = made("TokenClassification", 87, num_labels=5, **convolved), models.token_labels(rows, 5, 88)
    cases = [case(model, "tokens", side, labels) for side in BOTH]
    models.save(model, "deberta-convolved", half, config=joined)
    yield "deberta-convolved", cases

    only = dict(third, pos_att_type=["p2c"], share_att_key=False, pooler_hidden_act="tanh")
    model = made("SequenceClassification", 86, num_labels=3, **only)
    cases = [case(model, "class", "right", CLASSES)]
    models.save(model, "deberta-sequence", half)
    yield "deberta-sequence", cases


def main():
    torch.set_num_threads(1)
    families = (distilbert_family(), electra_family(), modernbert_family(), deberta_family())
    golden = [{"folder": name, "cases": cases} for family in families for name, cases in family]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    (models.HERE / "encoders.json").write_text(json.dumps({"made_by": made_by, "models": golden}) + "\n")


if __name__ == "__main__":
    main()
