"""Lists the modules that PEFT adapts with `target_modules="all-linear"`, for models of `models/`.

Run by hand: python3 all_linear.py
"""

import json
import pathlib

import peft
import transformers

HERE = pathlib.Path(__file__).parent
# A classifier's task tells PEFT to leave its head out.
FOLDERS = {"gpt2": None, "gpt2-untied": None, "llama": None, "gemma2": None, "gemma3": None, "bart": None, "t5": None,
           "t5-untied": None, "mt5-untied": None, "bert-masked-lm": None, "bert-sequence": "SEQ_CLS",
           "modernbert-masked-lm": None, "modernbert-sequence": "SEQ_CLS", "deberta-masked-lm": None,
           "deberta-sequence": "SEQ_CLS"}


def adapted(folder, task):
    architecture = json.loads((HERE / "models" / folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(HERE / "models" / folder)
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type=task)
    adapted = peft.get_peft_model(model, config)
    ending = ".lora_A.default.weight"
    names = (name.removeprefix("base_model.model.") for name, _ in adapted.named_parameters())
    return sorted(name.removesuffix(ending) for name in names if name.endswith(ending))


def main():
    found = {folder: adapted(folder, task) for folder, task in FOLDERS.items()}
    golden = {"peft": peft.__version__, "transformers": transformers.__version__, "modules": found}
    (HERE / "all_linear.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
