"""Renders conversations with transformers' `apply_chat_template`, and says which bytes the assistant wrote.

Run by hand from anywhere: python3 chat.py   (writes chat.json next to itself)

With a folder as argument, it renders the templates of that folder, and writes chat.json there. The tests then compare them:

    pip download --no-deps trl && unzip trl-*.whl 'trl/chat_templates/*'
    python3 chat.py trl/chat_templates
    FIREBRICK_CHAT_TEMPLATES=$PWD/trl/chat_templates cargo test -p firebrick-datasets --all-features --test golden chat

TRL has the templates of some families as they are, and beside each `NAME.jinja` a `NAME_training.jinja` with marks.

Made with Python 3.11.7, transformers 5.24.0, jinja2 3.1.6.

The templates are written after the public ones of the model families that name them, shortened where they only repeat
text. The conversations are in conversations.jsonl, one a line, whose order of names matters.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tokenizer():
    """Characters, so that a mask of tokens is a mask of characters."""
    words = {chr(at): at for at in range(1, 0x600)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="?")), **TOKENS)


def render(template, chat, **kwargs):
    tokens = tokenizer()
    tokens.chat_template = template
    try:
        messages = chat["messages"]
        return tokens.apply_chat_template(messages, tools=chat.get("tools"), tokenize=False, **kwargs)
    except Exception as error:  # the template's own exceptions, and those of Python within it
        return {"error": str(error)}


def marked(template, chat):
    """The bytes of each generation block."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in chat["messages"]]
    texts, parts = render_jinja_template(
        [messages], chat_template=template, tools=chat.get("tools"), return_assistant_tokens_mask=True, **TOKENS
    )
    size = lambda end: len(texts[0][:end].encode())
    return [[size(start), size(end)] for start, end in parts[0]]


# What stands around an answer, written down from each template, so that the parts are found another way than by
# rendering beginnings of the conversation. Where there are several ends, the last turn differs: the first that comes
# ends a turn.
TURNS = {
    "chatml": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "gemma": ("<start_of_turn>model\n", "<end_of_turn>\n"),
    "phi3": ("<|assistant|>\n", "<|end|>\n"),
    "zephyr": ("<|assistant|>\n", "</s>\n"),
    "llama2": (" [/INST]", "</s>"),
    "mistral": ("[/INST]", "</s>"),  # or after the result of a tool
    "llama31": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "qwen25": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "qwen3": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "phi4_mini": ("<|assistant|>", "<|end|>"),
    "olmo2": ("<|assistant|>\n", "</s>"),  # the last turn has no new line, so that none is a part of a turn
    "olmo3": ("<|im_start|>assistant\n", "<|im_end|>\n", "</s>"),
}


def found(name, text):
    start, *ends = TURNS[name]
    parts, at = [], 0
    starts = [start, "[/TOOL_RESULTS]"] if name == "mistral" else [start]
    while nearest := min(((text.find(one, at), one) for one in starts if one in text[at:]), default=None):
        begin = nearest[0] + len(nearest[1])
        at = min((text.find(end, begin) + len(end) for end in ends if end in text[begin:]), default=None)
        if at is None:
            break  # a question without an answer
        parts.append([len(text[:begin].encode()), len(text[:at].encode())])
    return parts


def main():
    chats = [json.loads(line) for line in (HERE / "conversations.jsonl").read_text("utf-8").splitlines()]
    made = {}
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text("utf-8")
        cases = []
        for chat in chats:
            text = render(template, chat)
            case = {"text": text, "prompt": render(template, chat, add_generation_prompt=True)}
            if isinstance(text, str):
                if "generation %}" in template:
                    case["answers"] = marked(template, chat)
                elif (marks := path.with_name(f"{path.stem}_training.jinja")).exists():
                    if render(marks.read_text("utf-8"), chat) == text:
                        case["answers"] = marked(marks.read_text("utf-8"), chat)
                elif folder == HERE and path.stem in TURNS:
                    case["answers"] = found(path.stem, text)
            cases.append(case)
        made[path.stem] = cases
    (folder / "chat.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


main()
