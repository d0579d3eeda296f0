"""Writes config_defaults.json: the defaults of transformers' configuration classes, read from their sources.

    pip download --no-deps transformers==4.57.6, the same of 5.24.0, and unpack the wheels
    python config_defaults.py FOLDER_OF_4 FOLDER_OF_5 > config_defaults.json
"""
import ast, json, sys

CLASSES = {
    "llama": ("llama", "LlamaConfig"), "mistral": ("mistral", "MistralConfig"), "qwen2": ("qwen2", "Qwen2Config"),
    "qwen3": ("qwen3", "Qwen3Config"), "phi3": ("phi3", "Phi3Config"), "gemma2": ("gemma2", "Gemma2Config"),
    "gemma3_text": ("gemma3", "Gemma3TextConfig"), "bert": ("bert", "BertConfig"),
    "roberta": ("roberta", "RobertaConfig"), "xlm-roberta": ("xlm_roberta", "XLMRobertaConfig"),
    "camembert": ("camembert", "CamembertConfig"), "distilbert": ("distilbert", "DistilBertConfig"),
    "electra": ("electra", "ElectraConfig"), "deberta-v2": ("deberta_v2", "DebertaV2Config"),
    "modernbert": ("modernbert", "ModernBertConfig"), "gpt2": ("gpt2", "GPT2Config"), "bart": ("bart", "BartConfig"),
    "t5": ("t5", "T5Config"), "mt5": ("mt5", "MT5Config"),
}


def number(node):
    # `interval(..)(default=0.02)` declares a range beside the default.
    if isinstance(node, ast.Call):
        return next((number(word.value) for word in node.keywords if word.arg == "default"), None)
    return eval(compile(ast.Expression(node), "default", "eval"), {})


def defaults(folder, module, name):
    tree = ast.parse(open(f"{folder}/transformers/models/{module}/configuration_{module}.py").read())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name).body
    start = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    if start:
        names = [a.arg for a in start.args.args][-len(start.args.defaults):]
        return dict(zip(names, map(number, start.args.defaults)))
    fields = [node for node in body if isinstance(node, ast.AnnAssign) and node.value is not None]
    return {node.target.id: number(node.value) for node in fields}


found = {}
for version, folder in zip(["4.57.6", "5.24.0"], sys.argv[1:]):
    found[version] = {kind: defaults(folder, *place) for kind, place in CLASSES.items()}
lines = []
for version, kinds in found.items():
    rows = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(fields)}" for kind, fields in kinds.items())
    lines.append(f"{json.dumps(version)}: {{\n{rows}\n}}")
print("{" + ",\n".join(lines) + "}")
