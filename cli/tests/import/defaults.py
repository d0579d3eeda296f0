"""Prints the defaults of transformers' training arguments as JSON, with those of sequence-to-sequence training.

    pip install torch accelerate transformers==5.24.0
    CUDA_VISIBLE_DEVICES= python3 defaults.py > transformers_5_24/args.json

The same with transformers 4.57.6 for transformers_4_57. The environment decides some defaults: made with torch 2.15.0 on
the CPU, and without any of the trackers that `report_to` lists.
"""

import json

from transformers import Seq2SeqTrainingArguments

fields = json.loads(Seq2SeqTrainingArguments("out").to_json_string())
if "logging_dir" in fields:
    # With the time and the name of the machine.
    fields["logging_dir"] = "out/runs/Nov27_12-00-00_host"
print(json.dumps(fields, indent=2))
