#!/usr/bin/env python3
"""Writes rope_tables.inc: rows of tables of cosines and sines as transformers computes them, in float64.

    tests/conformance/golden/rope_tables.py > tests/conformance/golden/rope_tables.inc      (needs torch and transformers)

The frequencies come from transformers' own functions, with float32 taken for float64 while they run.
"""
import math

import torch
from transformers import LlamaConfig, __version__
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZE = 16
POSITIONS = [1, 77, 5000]
# Attributes of rope_table -> parameters of transformers.
NAMES = {"theta": "rope_theta", "factor": "factor", "original": "original_max_position_embeddings",
         "low": "low_freq_factor", "high": "high_freq_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
         "truncate": "truncate", "magnitude": "attention_factor"}
CASES = [
    {"theta": 500000.0},
    {"scaling": "linear", "factor": 4.0},
    {"scaling": "llama3", "theta": 500000.0, "factor": 8.0, "original": 8192, "low": 1.0, "high": 4.0},
    {"scaling": "llama3", "factor": 3.0, "original": 512, "low": 1.5, "high": 5.0},
    {"scaling": "yarn", "theta": 1000000.0, "factor": 4.0, "original": 32768},
    {"scaling": "yarn", "factor": 2.5, "original": 2048, "truncate": False},
    {"scaling": "yarn", "factor": 16.0, "original": 4096, "beta_fast": 16.0, "beta_slow": 2.0, "magnitude": 1.25},
]


def frequencies(case):
    kind = case.get("scaling", "default")
    parameters = {NAMES[k]: v for k, v in case.items() if k != "scaling"}
    parameters.setdefault("rope_theta", 10000.0)
    if kind == "default":
        return [parameters["rope_theta"] ** (-2 * j / SIZE) for j in range(SIZE // 2)], 1.0
    config = LlamaConfig(hidden_size=4 * SIZE, num_attention_heads=4, head_dim=SIZE, max_position_embeddings=65536,
                         rope_parameters={"rope_type": kind, **parameters})
    narrow = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64
    try:
        inverse, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    finally:
        torch.float, torch.float32 = narrow
    assert inverse.dtype == torch.float64
    return inverse.tolist(), magnitude


def text(value):
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else \
        f'\\"{value}\\"' if isinstance(value, str) else str(value)


print(f"// Written by rope_tables.py from transformers {__version__}: attributes, position, row of the table.")
for case in CASES:
    inverse, magnitude = frequencies(case)
    attributes = "".join(f", {k}={text(v)}" for k, v in sorted(case.items()))
    for position in POSITIONS:
        row = [f(position * v) * magnitude for f in (math.cos, math.sin) for v in inverse]
        print(f'{{"rows=1, size={SIZE}{attributes}", {position}, {{')
        for at in range(0, SIZE, 4):
            print("    " + ", ".join(f"{v:.17g}" for v in row[at:at + 4]) + ",")
        print("}},")
