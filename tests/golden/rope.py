"""Writes rope.json: the frequencies of rotary embeddings that transformers derives from the fields of config.json.

    pip install numpy && pip download --no-deps transformers==5.24.0, and unpack the wheel
    python rope.py FOLDER > rope.json

It runs the functions of transformers' own sources, with numpy in place of torch: importing them would need all of torch.
"""
import ast, copy, json, math, sys, types

import numpy as np

SOURCES = sys.argv[1] + "/transformers/"


def of(path, *names):
    """The named functions and classes of a source file, or the methods of a class, as `Class.method`."""
    found, tree = [], ast.parse(open(SOURCES + path).read())
    for name in names:
        body = tree.body
        for part in name.split("."):
            node = next(n for n in body if getattr(n, "name", None) == part)
            body = node.body
        node.decorator_list = []
        found.append(node)
    found.insert(0, ast.parse("from __future__ import annotations").body[0])
    scope = {"math": math, "torch": torch, "logger": types.SimpleNamespace(warning=print, warning_once=print)}
    exec(compile(ast.Module(found, []), path, "exec"), scope)
    return scope


class Array(np.ndarray):
    def to(self, device=None, dtype=None):
        return self.astype(dtype or self.dtype).view(Array)

    def float(self):
        return self.to(dtype=np.float32)


torch = types.SimpleNamespace(
    float=np.float32, float32=np.float32, int64=np.int64, Tensor=Array, where=np.where,
    arange=lambda *range, dtype=None, device=None: np.arange(*range, dtype=dtype).view(Array),
    tensor=lambda values, dtype=None, device=None: np.array(values, dtype).view(Array),
    clamp=np.clip,
)
KINDS = ["linear_scaling_rope", "dynamic_ntk", "yarn", "longrope", "llama3"]
rope = of("modeling_rope_utils.py", "RotaryEmbeddingConfigMixin", *[f"_compute_{kind}_parameters" for kind in KINDS])
SCALED = {"linear": KINDS[0], "dynamic": KINDS[1], "yarn": "yarn", "longrope": "longrope", "llama3": "llama3"}
Mixin = rope["RotaryEmbeddingConfigMixin"]


class Config(Mixin):
    @property
    def per_layer_config(self):
        raise ValueError("only of configurations whose layers differ in size")


CONVERT = "convert_rope_params_to_dict"
OWN = {
    "phi3": of("models/phi3/configuration_phi3.py", f"Phi3Config.{CONVERT}")[CONVERT],
    "gemma3_text": of("models/gemma3/configuration_gemma3.py", f"Gemma3TextConfig.{CONVERT}")[CONVERT],
    "modernbert": of("models/modernbert/configuration_modernbert.py", f"ModernBertConfig.{CONVERT}")[CONVERT],
}
THETAS = {"gemma3_text": {"global": 1e6, "local": 1e4}, "modernbert": {"global": 160_000.0, "local": 1e4}}
LAYERS = ["full_attention", "sliding_attention"]


def ropes(fields):
    kind = fields["model_type"]
    rest = {k: copy.deepcopy(v) for k, v in fields.items() if k not in ["model_type", "rope_parameters", "head_dim"]}
    config = Config()
    config.rope_parameters = copy.deepcopy(fields.get("rope_parameters"))
    config.head_dim, config.hidden_size, config.num_attention_heads = fields["head_dim"], fields["head_dim"], 1
    config.max_position_embeddings = rest.pop("max_position_embeddings")
    config.default_theta = THETAS.get(kind, 1e4)
    if kind == "phi3":
        config.original_max_position_embeddings = rest.pop("original_max_position_embeddings", 4096)
    if kind in ["gemma2", "qwen2", *THETAS]:
        config.layer_types = LAYERS
    rest = OWN.get(kind, Mixin.convert_rope_params_to_dict)(config, **rest)
    for name, value in rest.items():
        setattr(config, name, value)
    # As PreTrainedConfig keeps what was not read.
    config.standardize_rope_params()
    found = []
    for layer in LAYERS if kind in THETAS else [None]:
        parameters = config.rope_parameters[layer] if layer else config.rope_parameters
        size = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
        if parameters["rope_type"] == "default":
            frequencies = 1.0 / parameters["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float32) / size)
            factor = 1.0
        else:
            compute = rope[f"_compute_{SCALED[parameters['rope_type']]}_parameters"]
            # Of dictionaries for types of layers, yarn reads `truncate` beside them.
            frequencies, factor = compute(config, layer_type=layer)
        found.append({"frequencies": [float(f"{f:.9g}") for f in np.asarray(frequencies, np.float64)], "factor": factor})
    return found


LLAMA = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 128}
PHI = {"model_type": "phi3", "head_dim": 8, "max_position_embeddings": 16384}
GEMMA = {"model_type": "gemma3_text", "head_dim": 8, "max_position_embeddings": 128}
MODERN = {"model_type": "modernbert", "head_dim": 8, "max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [2.0, 3.0, 4.0, 8.0]}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
CASES = [
    LLAMA,
    LLAMA | {"rope_theta": 500.0},
    LLAMA | {"rope_parameters": PLAIN},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": LINEAR},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": LINEAR, "rope_theta": 100.0},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": LINEAR | {"rope_theta": 50.0}},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": YARN},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": {}},
    LLAMA | {"rope_parameters": PLAIN, "rope_scaling": None},
    LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}},
    LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    LLAMA | {"rope_scaling": YARN},
    LLAMA | {"rope_scaling": YARN | {"original_max_position_embeddings": 32}, "rope_theta": 1000.0},
    LLAMA | {"rope_scaling": YARN | {"original_max_position_embeddings": 32, "truncate": False}},
    LLAMA | {"rope_scaling": YARN | {"original_max_position_embeddings": 32, "beta_fast": 8, "beta_slow": 0.5}},
    LLAMA | {"rope_scaling": YARN | {"beta_fast": None, "beta_slow": 0, "attention_factor": 1.25}},
    LLAMA | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    LLAMA | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0}},
    LLAMA | {"rope_scaling": YARN | {"factor": None, "original_max_position_embeddings": 32}},
    LLAMA | {"rope_scaling": YARN | {"factor": 0.5}},
    LLAMA | {"rope_scaling": YARN, "original_max_position_embeddings": 32},
    LLAMA | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}, "rope_theta": 500.0},
    LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    LLAMA | {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64, "rope_theta": 500.0}},
    LLAMA | {"rope_scaling": LONG | {"factor": 4.0}},
    LLAMA | {"rope_scaling": LONG, "original_max_position_embeddings": 32},
    LLAMA | {"rope_parameters": LONG | {"original_max_position_embeddings": 32, "rope_theta": 50.0}},
    LLAMA | {"rope_scaling": LONG | {"factor": 2.0, "attention_factor": 1.1, "original_max_position_embeddings": 32}},
    LLAMA | {"model_type": "mistral", "rope_scaling": YARN},
    LLAMA | {"model_type": "qwen2", "rope_parameters": PLAIN, "rope_scaling": LINEAR},
    LLAMA | {"model_type": "gemma2", "rope_parameters": YARN | {"rope_theta": 100.0}},
    PHI,
    PHI | {"rope_scaling": LONG},
    PHI | {"rope_scaling": {"type": "su"} | {k: v for k, v in LONG.items() if k != "rope_type"}},
    PHI | {"rope_scaling": {"type": "yarn"} | {k: v for k, v in LONG.items() if k != "rope_type"}},
    PHI | {"rope_scaling": LONG, "original_max_position_embeddings": 2048},
    PHI | {"rope_scaling": LONG | {"original_max_position_embeddings": 64}, "original_max_position_embeddings": 2048},
    PHI | {"rope_scaling": LONG | {"original_max_position_embeddings": 64}},
    PHI | {"head_dim": 16, "partial_rotary_factor": 0.5, "rope_parameters": LONG | {"rope_theta": 100.0}},
    PHI | {"head_dim": 16, "rope_parameters": LONG | {"partial_rotary_factor": 0.5}},
    GEMMA,
    GEMMA | {"rope_theta": 500.0, "rope_local_base_freq": 100.0, "rope_scaling": LINEAR},
    GEMMA | {"rope_parameters": {"full_attention": PLAIN | {}, "sliding_attention": {"rope_type": "default"}}},
    GEMMA | {"rope_parameters": {"full_attention": PLAIN | {}, "sliding_attention": PLAIN | {}}, "rope_scaling": LINEAR},
    GEMMA | {"rope_parameters": {"full_attention": YARN | {}, "sliding_attention": PLAIN | {}}},
    MODERN,
    MODERN | {"global_rope_theta": 500.0, "local_rope_theta": 100.0, "rope_scaling": LINEAR},
    MODERN | {"rope_parameters": {"full_attention": PLAIN | {}, "sliding_attention": LINEAR | {}}},
    MODERN | {"rope_parameters": {"full_attention": PLAIN | {}, "sliding_attention": PLAIN | {}}, "rope_scaling": LINEAR},
]
print("[" + ",\n".join(json.dumps({"config": case, "ropes": ropes(case)}) for case in CASES) + "]")
