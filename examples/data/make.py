"""Makes the small data sets of the examples: `python3 examples/data/make.py`, in the repository's root.

They are made up, so that nobody's text is in them, and the same every time.
"""

import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent


def entities(name, count, people, places, seed):
    """Sentences in words, each with a tag: who is where."""
    rng = random.Random(seed)
    frames = [
        "{person} lives in {place} .",
        "Yesterday {person} took the train to {place} .",
        "In {place} it rained all day .",
        "{person} and {person} met at the mill .",
        "The bread of {person} is the best in {place} .",
        "Nobody in {place} has seen {person} since May .",
        "The road from {place} to {place} was closed .",
        "Ask {person} about the red house .",
        "They baked bread and went home .",
    ]
    lines = []
    for _ in range(count):
        for part in rng.choice(frames).split():
            if part in ("{person}", "{place}"):
                names, kind = (people, "PER") if part == "{person}" else (places, "LOC")
                for at, word in enumerate(rng.choice(names).split()):
                    lines.append(f"{word}\t{'I' if at else 'B'}-{kind}")
            else:
                lines.append(f"{part}\tO")
        lines.append("")
    (FOLDER / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def topics(name, count, seed):
    """Sentences with what they are about."""
    rng = random.Random(seed)
    words = {
        "weather": ["rain", "snow", "wind", "sun", "fog", "storm", "frost", "clouds"],
        "kitchen": ["bread", "soup", "salt", "oven", "flour", "butter", "knife", "onions"],
        "music": ["violin", "song", "choir", "piano", "drum", "waltz", "flute", "concert"],
    }
    frames = [
        "there was talk of {} and {} all evening",
        "she wrote a letter about {}",
        "nothing is better than {} with {}",
        "we heard of the {} before we saw the {}",
        "without {} there is no {}",
        "he could not stop thinking of the {}",
    ]
    rows = ["label\ttext"]
    for _ in range(count):
        topic = rng.choice(sorted(words))
        frame = rng.choice(frames)
        rows.append(f"{topic}\t{frame.format(*rng.sample(words[topic], frame.count('{}')))}")
    (FOLDER / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(number):
    if number < 20:
        return ONES[number]
    if number < 100:
        rest = number % 10
        return TENS[number // 10] + (f" {ONES[rest]}" if rest else "")
    rest = number % 100
    return f"{ONES[number // 100]} hundred" + (f" {spelled(rest)}" if rest else "")


def numbers(seed):
    """Numbers in words, and in digits."""
    all_of_them = list(range(1000))
    random.Random(seed).shuffle(all_of_them)
    for name, some in [("numbers.tsv", all_of_them[:900]), ("numbers.valid.tsv", all_of_them[900:])]:
        rows = ["words\tdigits"] + [f"{spelled(number)}\t{' '.join(str(number))}" for number in some]
        (FOLDER / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


PEOPLE = ["Maria", "Peter Bell", "Ada", "Jonas Fink", "Ruth", "Tomas", "Ines Vale", "Karl", "Mira Stone", "Otto"]
PLACES = ["Lisbon", "Old Harbour", "Bergen", "Turin", "Green Hill", "Gdansk", "Porto", "North Bay", "Lyon", "Riga"]
entities("entities.conll", 400, PEOPLE[:8], PLACES[:8], 1)
entities("entities.valid.conll", 100, PEOPLE, PLACES, 2)
topics("topics.tsv", 300, 3)
topics("topics.valid.tsv", 80, 4)
numbers(5)


COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red", "lemon": "yellow"}


def chats(name, count, seed):
    """Conversations with answers that follow from the questions."""
    rng = random.Random(seed)
    colors = COLORS
    lines = []
    for _ in range(count):
        messages = []
        for thing in rng.sample(sorted(colors), rng.randint(1, 2)):
            messages += [
                {"role": "user", "content": f"What color is {thing}?"},
                {"role": "assistant", "content": f"It is {colors[thing]}."},
            ]
        lines.append(json.dumps({"messages": messages}))
    (FOLDER / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


chats("chat.jsonl", 40, 6)
chats("chat.valid.jsonl", 8, 7)


def preferences(name, count, seed):
    """Questions with a right and a wrong answer."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        thing = rng.choice(sorted(COLORS))
        wrong = rng.choice(sorted(set(COLORS.values()) - {COLORS[thing]}))
        answers = {"chosen": COLORS[thing], "rejected": wrong}
        record = {"prompt": [{"role": "user", "content": f"What color is {thing}?"}]}
        for key, color in answers.items():
            record[key] = [{"role": "assistant", "content": f"It is {color}."}]
        lines.append(json.dumps(record))
    (FOLDER / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


preferences("preferences.jsonl", 40, 8)
preferences("preferences.valid.jsonl", 8, 9)
