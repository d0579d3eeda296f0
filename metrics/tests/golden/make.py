#!/usr/bin/env python3
"""Computes the golden values with the reference implementations, on seeded data.

    pip install seqeval==1.2.2 scikit-learn==1.9.1 sacrebleu==2.6.0 rouge-score==0.1.2 'transformers<5'
    python3 make.py
"""

import json
import random
import warnings
from pathlib import Path

from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from seqeval.metrics import accuracy_score, sequence_labeling, v1
from seqeval.scheme import IOB2, Tokens
from sklearn import metrics as sklearn
from transformers.data.metrics import squad_metrics

warnings.filterwarnings("ignore")
random.seed(20)

SENTENCES = [
    "The committee approved a budget of $1,000.5 million on 12-15 May 2021.",
    "“Nobody,” she said, “has ever seen the north face in winter.”",
    "It&apos;s &quot;almost&quot; ready &amp; we&lt;3 it -- don't wait!",
    "Two young, White males are outside near many bushes.",
    "Der Straßenbahnfahrer grüßt höflich: „Grüß Gott!“",
    "Une fille en robe rose monte l'escalier d'une cabane (en bois).",
    "В 1990-1995 годах население выросло на 3,5 %.",
    "東京は晴れ、最高気温は25.3度です。",
    "The U.S. economy grew 2.3% in Q4; analysts expected 1.9-2.0%.",
    "Email me at first.last@example.com or visit http://example.com/a?b=c#d.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Σίσυφος ΟΔΟΣ İstanbul ﬁne naïve cafe\u0301 \u212a Ⅷ ½",
    "He paid €5.00, £3,000 and ¥100; that's 3/4 of it (75%).",
    "😀 emojis 👩‍👩‍👧 everywhere 😀!!!",
    "the the the a an The end",
    "The cat sat on the mat.\nThen it slept for hours.\nNobody minded.",
    "snake_case, C++ & Rust's `impl<T>` [sic] {ok} ~tilde~ ^caret^ a|b \\ back",
    "well-known state-of-the-art 5-year-old 7.-8. No. 5.",
    "line-\nbreak\tand\u00a0odd\u2003spaces\x1chere\u200bzero",
    "<skipped> words &amp;quot; and &quot;quotes&quot;",
]
EDGES = ["", " ", "\n", ".", "the", "a", "Yes", "...", "-", "é"]


def noisy(text: str) -> str:
    """Returns the text with errors like a model's: words lost, doubled, swapped, in another case."""
    words = text.split(" ")
    for _ in range(random.randint(0, 4)):
        at = random.randrange(len(words)) if words else 0
        kind = random.randrange(5)
        if not words:
            break
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, random.choice(words))
        elif kind == 2:
            random.shuffle(words[at : at + 3])
            words[at : at + 2] = reversed(words[at : at + 2])
        elif kind == 3:
            words[at] = words[at].swapcase()
        else:
            words[at] = random.choice(["thing", "1,5", "-", "la", "“x”", "mat."])
    return " ".join(words)


def corpus(size: int, most_references: int) -> dict:
    texts = [random.choice(SENTENCES + random.sample(EDGES, 2)) for _ in range(size)]
    predictions = [noisy(text) for text in texts]
    references = [[noisy(text) for _ in range(random.randint(1, most_references))] for text in texts]
    return {"predictions": predictions, "references": references}


def columns(references: list) -> list:
    """Returns references in sacrebleu's order: the first of all segments, the second of all, and so on."""
    most = max(map(len, references))
    return [[row[i] if i < len(row) else None for row in references] for i in range(most)]


def tag() -> str:
    return random.choice(["O", "O", "O", "B-PER", "I-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b", "B", "I"])


def report(module, predicted: list, reference: list, **options) -> dict:
    of = lambda average: module.precision_recall_fscore_support(
        reference, predicted, average=average, zero_division=0, **options
    )
    rows = [list(map(float, row)) for row in zip(*of(None))]
    averages = {average: list(map(float, of(average)[:3])) for average in ("micro", "macro", "weighted") if rows}
    return {"classes": rows, "averages": averages}


def entities() -> list:
    cases = []
    for size in (0, 1, 1, 2, 5, 20):
        reference = [[tag() for _ in range(random.randint(0, 15))] for _ in range(size)] or [["O", "I-PER"]]
        predicted = [[t if random.random() < 0.7 else tag() for t in tags] for tags in reference]
        spans = {
            "strict": [[[e.start, e.end, e.tag] for e in Tokens(tags, IOB2).entities] for tags in predicted],
            "conlleval": [
                [[start, last + 1, kind] for kind, start, last in sequence_labeling.get_entities(tags)]
                for tags in predicted
            ],
        }
        tags = sum(map(len, reference))
        cases.append({
            "predictions": predicted,
            "references": reference,
            "spans": spans,
            "strict": report(v1, predicted, reference, scheme=IOB2),
            "conlleval": report(sequence_labeling, predicted, reference),
            "accuracy": accuracy_score(reference, predicted) if tags else 0.0,
        })
    return cases


def classification() -> list:
    cases = []
    for classes, items in [(2, 1), (2, 30), (3, 10), (5, 100), (7, 9)]:
        reference = [random.randrange(classes) for _ in range(items)]
        predicted = [c if random.random() < 0.6 else random.randrange(classes) for c in reference]
        cases.append({
            "names": [f"class {number}" for number in range(classes)],
            "predictions": predicted,
            "references": reference,
            "report": report(sklearn, predicted, reference),
            "accuracy": float(sklearn.accuracy_score(reference, predicted)),
            "confusion": sklearn.confusion_matrix(reference, predicted, labels=range(classes)).tolist(),
        })
    return cases


def bleu_numbers(score) -> dict:
    return {
        "score": score.score,
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "lengths": [score.sys_len, score.ref_len],
    }


def bleu() -> dict:
    settings = [
        {"smooth_method": method, "smooth_value": value, "lowercase": lowercase, "tokenize": tokens,
         "effective_order": effective}
        for method, value, lowercase, tokens, effective in [
            ("exp", None, False, "13a", False), ("exp", None, True, "13a", False), ("exp", None, False, "none", False),
            ("floor", 0.1, False, "13a", False), ("floor", 0.01, False, "13a", True),
            ("add-k", 1, False, "13a", False), ("add-k", 0.5, True, "none", True),
            ("none", None, False, "13a", False), ("none", None, False, "13a", True),
        ]
    ]
    # Smoothing and effective order matter if an order has no match or no n-grams.
    cases = [
        {"predictions": ["a cat sat there today", "quite other words"],
         "references": [["the cat was there yesterday", "it"], ["none of these, not one"]]},
        {"predictions": ["the cat", "Yes."], "references": [["the cat is here"], ["yes", "Yes, of course."]]},
        {"predictions": ["", " "], "references": [["the cat is here"], [""]]},
        {"predictions": ["the cat is here now"], "references": [["the cat is gone", "now the cat is there"]]},
    ]
    cases += [corpus(size, references) for size, references in [(1, 1), (2, 1), (4, 3), (25, 1), (25, 4)]]
    for case in cases:
        case["scores"] = [
            bleu_numbers(BLEU(**setting).corpus_score(case["predictions"], columns(case["references"])))
            for setting in settings
        ]
        case["sentences"] = [
            bleu_numbers(BLEU(effective_order=True).sentence_score(prediction, references))
            for prediction, references in zip(case["predictions"], case["references"])
        ]
    alphabet = "ab1 2.,-'&;<>\"()/\n\té٣%:"
    lines = SENTENCES + EDGES + ["".join(random.choices(alphabet, k=30)) for _ in range(60)]
    return {"settings": settings, "cases": cases, "tokens": [[line, BLEU()._preprocess_segment(line)] for line in lines]}


def chrf() -> dict:
    settings = [
        {"char_order": 6, "word_order": words, "beta": beta, "lowercase": lowercase, "whitespace": whitespace}
        for words, beta, lowercase, whitespace in [
            (0, 2, False, False), (2, 2, False, False), (0, 2, True, True), (2, 1, True, False), (1, 3, False, True),
        ]
    ]
    cases = []
    for size, references in [(1, 1), (2, 2), (25, 1), (25, 4)]:
        case = corpus(size, references)
        case["scores"] = [
            CHRF(**setting).corpus_score(case["predictions"], columns(case["references"])).score
            for setting in settings
        ]
        case["sentences"] = [
            CHRF(word_order=2).sentence_score(prediction, references).score
            for prediction, references in zip(case["predictions"], case["references"])
        ]
        cases.append(case)
    return {"settings": settings, "cases": cases}


def rouge() -> list:
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(kinds)
    case = corpus(50, 3)
    words = "the cat sat on a mat and dog 1 ran".split()
    for _ in range(40):
        text = lambda: "".join(random.choice(words) + random.choice("  \n") for _ in range(random.randint(3, 25)))
        case["predictions"].append(text())
        case["references"].append([text() for _ in range(random.randint(1, 2))])
    scores = [
        scorer.score_multi(references, prediction)
        for prediction, references in zip(case["predictions"], case["references"])
    ]
    case["scores"] = [[list(score[kind]) for kind in kinds] for score in scores]
    return case


def answers() -> dict:
    case = corpus(60, 3)
    extra = [("", []), ("no", []), ("the", ["a"]), ("", ["the", "x"]), ("a\u0301 b", ["B", "\u0301 b"]),
             ("The U.S.", ["us", "USA"]), ("_a_ an", ["a"]), ("½ the x", ["½ x"]), ("in\x1cthe\u2003end", ["In end!"])]
    case["predictions"] += [prediction for prediction, _ in extra]
    case["references"] += [references for _, references in extra]
    case["normalized"] = [squad_metrics.normalize_answer(prediction) for prediction in case["predictions"]]
    case["scores"] = []
    for prediction, references in zip(case["predictions"], case["references"]):
        # Like `get_raw_scores` of the script.
        references = [text for text in references if squad_metrics.normalize_answer(text)] or [""]
        exact = max(squad_metrics.compute_exact(text, prediction) for text in references)
        f1 = max(squad_metrics.compute_f1(text, prediction) for text in references)
        case["scores"].append([float(exact), float(f1)])
    return case


if __name__ == "__main__":
    for make in (entities, classification, bleu, chrf, rouge, answers):
        path = Path(__file__).with_name(f"{make.__name__}.json")
        path.write_text(json.dumps(make(), ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
        print(path.name, path.stat().st_size, "bytes")
