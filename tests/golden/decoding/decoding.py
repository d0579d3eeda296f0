"""Golden texts and distributions, as Transformers' `generate` and its logits processors make them.

Run by hand: python3 decoding.py   (writes decoding.json next to itself)

The model is a table: the logits of a token depend on the last two tokens alone, so that a test needs no network. Each
prompt is decoded alone; where padding has no part in it, all prompts are also decoded as a batch that is padded at the
left, and must come out the same.
"""

import itertools
import json
import pathlib

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper
from transformers.generation import TopKLogitsWarper, TopPLogitsWarper
from transformers.modeling_outputs import CausalLMOutput

VOCABULARY = 10
NEW = 7
PAD = 0
PROMPTS = [[4], [1, 2, 5, 1], [8, 6, 8, 6, 8, 9]]


class TableConfig(PretrainedConfig):
    model_type = "table"


class TableModel(PreTrainedModel, GenerationMixin):
    """Logits out of a table `[vocabulary, vocabulary, vocabulary]`, by the token before the last and the last one."""

    config_class = TableConfig

    def __init__(self, config, table):
        super().__init__(config)
        self.table = torch.nn.Parameter(table, requires_grad=False)

    def forward(self, input_ids, attention_mask=None, **_):
        # What is not there counts as token 0.
        ids = input_ids if attention_mask is None else input_ids * attention_mask
        before = torch.nn.functional.pad(ids, (1, 0))[:, :-1]
        return CausalLMOutput(logits=self.table[before, ids])

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}


def log_probability(table, prompt, text):
    """Of the text by the model alone."""
    ids, total = [0, *prompt, *text], 0.0
    log_probabilities = table.double().log_softmax(-1)
    for at in range(len(prompt) + 1, len(ids)):
        total += float(log_probabilities[ids[at - 2], ids[at - 1], ids[at]])
    return total


def generate(model, prompts, config):
    """The texts of each prompt, up to the end token, and their scores."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    found = model.generate(ids, attention_mask=mask, generation_config=config)
    ends = config.eos_token_id or []
    texts = []
    for sequence in found.sequences[:, longest:].tolist():
        end = next((at + 1 for at, token in enumerate(sequence) if token in ends), len(sequence))
        texts.append(sequence[:end])
    scores = found.sequences_scores.tolist() if "sequences_scores" in found else [None] * len(texts)
    each = config.num_return_sequences or 1
    return [list(zip(texts, scores, strict=True))[at : at + each] for at in range(0, len(texts), each)]


def close(one, other):
    return len(one) == len(other) and all(
        left[0] == right[0] and (left[1] is None or abs(left[1] - right[1]) < 1e-5)
        for left, right in zip(one, other, strict=True)
    )


def case(model, ours, **theirs):
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=NEW,
        pad_token_id=PAD,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        **theirs,
    )
    found = [generate(model, [prompt], config)[0] for prompt in PROMPTS]
    if config.no_repeat_ngram_size in (None, 0):
        for alone, together in zip(found, generate(model, PROMPTS, config), strict=True):
            assert close(alone, together), (ours, alone, together)
    texts = [
        [
            {"tokens": text, "log_probability": round(log_probability(model.table, prompt, text), 6)}
            | ({} if score is None else {"score": round(score, 6)})
            for text, score in of_prompt
        ]
        for prompt, of_prompt in zip(PROMPTS, found, strict=True)
    ]
    return {"decoding": {"max_new_tokens": NEW, **ours}, "texts": texts}


def cases(model):
    ends = ([], [3], [3, 7])
    extras = (
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 4},
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 5},
    )
    for end, extra in itertools.product(ends, ({}, *extras, {"no_repeat_ngram_size": 1})):
        yield case(model, {"end_tokens": end, **extra}, eos_token_id=end or None, **extra)
    stops = (("Full", True), ("Unlikely", False), ("Impossible", "never"))

    def of_beams(beams, penalty, stop, end, extra):
        both = {"num_beams": beams, "length_penalty": penalty, "num_return_sequences": beams, **extra}
        ours = {**both, "early_stopping": stop[0], "end_tokens": end}
        return case(model, ours, **both, early_stopping=stop[1], eos_token_id=end or None)

    for grid in itertools.product((2, 3, 4, 5), (0.0, 0.6, 1.0, 2.0), stops, ends):
        yield of_beams(*grid, {})
    for grid in itertools.product((2, 4), (0.6, 2.0), stops, ([3],), extras):
        yield of_beams(*grid)
    for grid in itertools.product((2, 3, 4), (-0.5, -1.5), stops, ends[1:]):
        yield of_beams(*grid, {})


def distributions():
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randn(VOCABULARY, generator=generator) * scale for scale in (0.5, 2.0, 6.0)]
    rows = [(row * 1000).round() / 1000 for row in rows]
    # Equal logits, and some that are impossible.
    rows.append(torch.tensor([1.0, 2.0, 2.0, -1.0, 2.0, 0.5, float("-inf"), 1.0, -3.0, float("-inf")]))
    warpers = {"temperature": TemperatureLogitsWarper, "top_k": TopKLogitsWarper}
    warpers |= {"top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    for settings in (
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.6},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_k": 50},
        {"temperature": 1.0, "top_p": 0.3},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.0, "min_p": 0.6},
        {"temperature": 1.0, "top_p": 0.75, "min_p": 0.3},
        {"temperature": 0.7, "top_k": 6, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 7, "top_p": 0.95, "min_p": 0.1},
    ):
        processors = LogitsProcessorList([warpers[name](value) for name, value in settings.items()])
        for logits in rows:
            found = processors(None, logits[None].clone()).double().softmax(-1)[0].tolist()
            yield {
                "decoding": settings,
                "logits": [None if logit == float("-inf") else round(logit, 3) for logit in logits.tolist()],
                "probabilities": [round(probability, 8) for probability in found],
            }


def lines(key, values):
    """One value a line, so that a change is seen."""
    body = ",\n".join(json.dumps(value, separators=(",", ":")) for value in values)
    return f'"{key}":[\n{body}\n]'


def main():
    generator = torch.Generator().manual_seed(11)
    table = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator) * 1.6
    # End tokens that are likely enough to end some texts early.
    table[..., 3] += 0.7
    table = (table * 1000).round() / 1000
    model = TableModel(TableConfig(vocab_size=VOCABULARY), table).eval()
    head = {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}}
    head |= {"vocabulary": VOCABULARY, "prompts": PROMPTS}
    head["table"] = [round(logit, 3) for logit in table.flatten().tolist()]
    parts = [json.dumps({key: value}, separators=(",", ":"))[1:-1] for key, value in head.items()]
    parts += [lines("cases", cases(model)), lines("distributions", distributions())]
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        main()
