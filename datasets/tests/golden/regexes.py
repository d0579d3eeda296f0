"""Runs regular expressions in Python's tokenizers, in each part of a tokenizer.json that takes one.

Run by hand from anywhere: python3 regexes.py   (writes regexes.json next to itself)
Made with Python 3.11.7, tokenizers 0.23.3.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = Path(__file__).parent
VERSIONS = {"tokenizers": "0.23.3"}

TEXTS = [
    "",
    "a\nb",
    "ab\n\nB_9\n",
    "x\r\ny \t z\x0b\x0c",
    "I'll, don't; 3.14-7",
    "e\u0301\u0308a\u200db\u200cc",
    "👩\u200d👧🏽 🇳🇴x",
    "Straße ſK ΣσςİıẞﬁǄ",
    "\u0085\u00a0\u2003\u2028\u3000\ufeff\u200b.",
    "٣²½Ⅷ五_0xFf",
    "한각 ก็ क्षि 文字カナ",
    "$+<=>^`|~¢§«",
    "\x00\x7f\u00ad\ue000\U000e0001",
]

# The patterns of GPT-2, Llama 3 and GPT-4o.
KNOWN = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\s*[\r\n]+|\s+",
]

ESCAPES = [r"\w", r"\W+", r"\d+", r"\D", r"\s+", r"\S+", r"\h", r"\H+", r"\R", r"\X", r"\N", r"\O", r"\K", r"a\Kb"]
ESCAPES += [r"\t", r"\v", r"\f", r"\e", r"\x41", r"\x{1F469}", r"\x{61 62}", r"\u0041", r"\101", r"\cA", r"\0", r"\Q.\E"]

ANCHORS = ["^", "$", "^.", ".$", "(?m)^.", "(?m).$", "(?m).", "(?s).", ".", r"\A.", r".\z", r".\Z", r"\G.", r"\b", r"\B"]
ANCHORS += [r"\b\w", r"\y", r"\Y", r"(?y{w})\y", r"(?y{g})\X", r"(?y{w})\X"]

CLASSES = ["[a-z]", "[^a-z]+", r"[\w&&[^_\d]]+", "[[a-c]x]", "[]a]", "[a-]", r"[\]\[]", r"[\d\-x]", "[^\\S\n]", r"[\b]"]
CLASSES += [r"[\h]", r"[\R]", r"[\X]", r"[à-ÿ]", "[😀-🙏👩]", "(?i)[a-k]+", r"[\x{61}-\x{7a}]", "[a-c&&b-d]", "[a&&]", "[z-a]"]

POSIX = [f"[[:{name}:]]" for name in (
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
    "word", "xdigit", "^alpha", "nope",
)]

PROPERTIES = [rf"\p{{{name}}}" for name in (
    "L", "Lu", "Lt", "LC", "Letter", "M", "Mn", "N", "Nd", "Nl", "No", "P", "Pd", "Pc", "S", "Sm", "Sc", "Z", "Zs",
    "C", "Cc", "Cf", "Co", "Cn", "Any", "Assigned", "Han", "Latin", "Greek", "Hangul", "Thai", "Devanagari",
    "Katakana", "Common", "Inherited", "Alphabetic", "Uppercase", "Lowercase", "White_Space", "Emoji",
    "Extended_Pictographic", "Emoji_Modifier", "Regional_Indicator", "ID_Start", "XIDC", "Script=Han", "sc=Latin",
    "InBasicLatin", "In_Latin_1_Supplement", "Alnum", "Punct", "Word", "Graph", "^L", "nope",
)] + [r"\P{L}+", r"\pL", r"[\p{L}\p{M}]+", r"[^\p{L}]", r"\p{letter}", r"\p{ L u }"]

LOOKS = ["(?=b)", "a(?=\n)", "a(?!b)", "(?<=a).", "(?<!a)b", "(?<=a|bc).", "(?<=a+)b", r"(?<=\s)\S", "(?<!^).", "(?=a)*a"]

REPEATS = ["a*", "a+?", "a??b", "a{1,2}", "a{,2}", "a{2}", "a{,}", "a{x", "[ab]++", "[ab]*+b", "(?>[ab]+)b", "a{1,2}+", "x**"]

GROUPS = [r"(a)\1", r"(?<n>[ab])\k<n>", r"(.)(?:\1)", r"(?<p>a\g<p>?b)", "(?#note)a", "(?x) a b # c", "a|", "|a", "()", "(?:)"]
GROUPS += [r"(?i:ss)", "(?i)straße", "(?i)ß", "(?i)k", "(?i)σ", "(?i)i", "(?i)ﬁ", "(?i)ǆ", "(?i)a(?-i)B", "(?W)\\w+", "(?D)\\d", "(?S)\\s"]
GROUPS += ["(?P)\\w", "(?P<n>a)", "(?a)\\w", "(?u)\\w", "(?L)a", "(?~b)", "(a)?(?(1)b|x)", "(*FAIL)", "(?{x})", r"\p", "(", ")", "[", "*", "\\"]

PATTERNS = KNOWN + ESCAPES + ANCHORS + CLASSES + POSIX + PROPERTIES + LOOKS + REPEATS + GROUPS

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
WITH_ALL_BEHAVIORS = [r"\s+", r"\b", ".$", r"\p{L}", "(?=b)", "a*", r"\X"]


def unless_whole(pieces, text):
    """Returns None if the text was not cut, to keep the file small."""
    return None if pieces == [text] else pieces


def pieces(pre_tokenizer):
    offsets = [[offset for _, offset in pre_tokenizer.pre_tokenize_str(text)] for text in TEXTS]
    return [unless_whole([text[start:end] for start, end in cut], text) for text, cut in zip(TEXTS, offsets)]


def replaced(pattern):
    normalizer = normalizers.Replace(pattern, "_")
    texts = [normalizer.normalize_str(text) for text in TEXTS]
    # The same pattern as a decoder, which receives the texts as tokens.
    tokenizer = Tokenizer(models.WordLevel({text: id for id, text in enumerate(TEXTS)}, unk_token=""))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(pattern, "_"), decoders.Fuse()])
    assert [tokenizer.decode([id]) for id in range(len(TEXTS))] == texts, pattern
    return [None if new == text else new for new, text in zip(texts, TEXTS)], failing(normalizer, texts)


def failing(normalizer, texts):
    """Returns the texts that tokenizers cannot encode: it panics if an empty match at their end is replaced."""
    tokenizer = Tokenizer(models.BPE({byte: id for id, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    failing = []
    for index, (text, new) in enumerate(zip(TEXTS, texts)):
        try:
            assert tokenizer.decode(tokenizer.encode(text).ids) == new, text
        except BaseException as error:
            assert type(error).__name__ == "PanicException", error
            failing.append(index)
    return failing


def main():
    assert len(set(PATTERNS)) == len(PATTERNS)
    cases = []
    for text in PATTERNS:
        try:
            pattern = Regex(text)
        except Exception:
            cases.append({"pattern": text, "refused": True})
            continue
        replacement, fails = replaced(pattern)
        case = {"pattern": text, "replaced": replacement} | ({"fails": fails} if fails else {})
        case["isolated"] = pieces(pre_tokenizers.Split(pattern, "isolated"))
        cases.append(case)
    behaviors = [
        {
            "pattern": pattern,
            "behavior": "".join(part.capitalize() for part in behavior.split("_")),
            "invert": invert,
            "pieces": pieces(pre_tokenizers.Split(Regex(pattern), behavior, invert)),
        }
        for pattern in WITH_ALL_BEHAVIORS
        for behavior in BEHAVIORS
        for invert in (False, True)
    ]
    byte_level = pieces(pre_tokenizers.ByteLevel(add_prefix_space=False))
    golden = {"versions": VERSIONS, "texts": TEXTS, "cases": cases, "behaviors": behaviors, "byte_level": byte_level}
    lines = [f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for key, value in golden.items()]
    (HERE / "regexes.json").write_text("{" + ",\n".join(lines) + "}\n")
    print(len(cases), "patterns,", sum("refused" in case for case in cases), "refused")


if __name__ == "__main__":
    main()
