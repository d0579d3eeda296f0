"""Adapters that PEFT saves for models of `models/`, and the logits, the summed loss of the next tokens and the norms of
the gradients of the models with them.

Run by hand: python3 adapters.py   (writes adapters/NAME/ and adapters/cases.json next to itself)
"""

import json
import pathlib
import shutil

import peft
import torch
import transformers

HERE = pathlib.Path(__file__).parent
OUT = HERE / "adapters"
IDS = [[3, 7, 1, 12, 5], [9, 2, 2, 14, 6]]
CASES = {
    "llama": ("llama", dict(r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"], lora_dropout=0.1)),
    "llama-rslora": ("llama", dict(r=3, lora_alpha=2, use_rslora=True, target_modules="all-linear")),
    "llama-embedding": ("llama", dict(r=2, lora_alpha=4, target_modules=["embed_tokens", "v_proj"])),
    "llama-dora": ("llama", dict(r=2, lora_alpha=3, use_dora=True, target_modules=["embed_tokens", "q_proj", "up_proj"])),
    "gpt2-dora": ("gpt2", dict(r=2, lora_alpha=3, use_dora=True, use_rslora=True, target_modules=["c_attn", "c_fc"])),
    "gpt2": ("gpt2", dict(r=2, lora_alpha=3, target_modules=["c_attn", "attn.c_proj"], modules_to_save=["mlp.c_fc"])),
}


def adapted(name, folder, settings):
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "models" / folder, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(**settings, fan_in_fan_out=folder == "gpt2"))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with torch.no_grad():
        for _, parameter in trained:
            parameter.add_(torch.randn(parameter.shape) * 0.25)
    shutil.rmtree(OUT / name, ignore_errors=True)
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    config = json.loads((OUT / name / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = folder
    (OUT / name / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor(IDS)).logits
        with model.disable_adapter():
            given = model(input_ids=torch.tensor(IDS)).logits
    assert (logits - given).abs().max() > 0.01, name
    ids = torch.tensor(IDS)
    read = model(input_ids=ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(read.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    loss.backward()
    # As in the file.
    short = lambda key: key.replace(".default", "").removeprefix("base_model.model.").replace("vector.weight", "vector")
    norms = {short(key): round(parameter.grad.norm().item(), 6) for key, parameter in trained}
    learned = {"loss": round(loss.item(), 6), "gradient_norms": norms}
    return {"name": name, **learned, "model": folder, "logits": [round(x, 7) for x in logits.flatten().tolist()]}


def main():
    cases = [adapted(name, folder, settings) for name, (folder, settings) in CASES.items()]
    golden = {"peft": peft.__version__, "transformers": transformers.__version__, "ids": IDS, "cases": cases}
    (OUT / "cases.json").write_text(json.dumps(golden) + "\n")
    # All settings that PEFT has.
    peft.LoraConfig().save_pretrained(OUT / "defaults")


if __name__ == "__main__":
    main()
