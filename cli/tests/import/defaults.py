"""Prints the defaults of Transformers' training arguments as JSON, as `TrainingArguments("out").to_json_string()` does.

    pip download transformers==5.24.0 --no-deps && unzip transformers-*.whl 'transformers/training_args*.py'
    python3 defaults.py transformers > transformers_5_24/args.json

It reads the classes without importing them, so it needs neither Transformers nor torch.
"""

import ast
import json
import sys
from pathlib import Path

# What `__post_init__` makes of a default.
AFTER = {
    "output_dir": "out",
    "debug": [],
    "report_to": [],
    "disable_tqdm": False,
    "include_num_input_tokens_seen": "no",
    "activation_checkpointing": False,
    "optim": "adamw_torch_fused",
    "hub_token": "<HUB_TOKEN>",
    "push_to_hub_token": "<PUSH_TO_HUB_TOKEN>",
    "accelerator_config": {
        "split_batches": False,
        "dispatch_batches": None,
        "even_batches": True,
        "use_seedable_sampler": True,
        "non_blocking": False,
        "gradient_accumulation_kwargs": None,
    },
}
# The same in version 4 only.
AFTER_4 = {
    "fsdp": [],
    "fsdp_config": {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False},
    "local_rank": 0,
    "logging_dir": "out/runs/Nov27_12-00-00_host",
}


def defaults(path, name):
    [cls] = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name]
    for field in (node for node in cls.body if isinstance(node, ast.AnnAssign)):
        given = field.value
        if isinstance(given, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in given.keywords}
            if "init" in keywords and not ast.literal_eval(keywords["init"]):
                continue
            factory = keywords.get("default_factory")
            given = keywords.get("default")
            if factory is not None:
                yield field.target.id, {"dict": {}, "list": []}[factory.id]
                continue
        is_literal = isinstance(given, (ast.Constant, ast.UnaryOp))
        yield field.target.id, ast.literal_eval(given) if is_literal else None


folder = Path(sys.argv[1])
fields = dict(defaults(folder / "training_args.py", "TrainingArguments"))
after = AFTER | (AFTER_4 if "overwrite_output_dir" in fields else {"gradient_checkpointing": False})
fields = {name: after.get(name, value) for name, value in fields.items()}
fields |= dict(defaults(folder / "training_args_seq2seq.py", "Seq2SeqTrainingArguments"))
print(json.dumps(fields, indent=2))
