"""That tools/bench/torch_gpt.py trains the models that gptc trains: the same number of parameters, and with the same
weights and tokens the same loss.

    same_model.py BIN
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import torch_gpt
from safetensors_file import arrays

BIN = sys.argv[1]
BLOCK, VOCAB, LR = 16, 65, 1e-3
NAMES = {
    "attn.c_attn": "qkv",
    "attn.c_proj": "proj",
    "mlp.c_fc": "fc",
    "mlp.c_proj": "out",
    "ln_1": "ln_1",
    "ln_2": "ln_2",
}


def safetensors(path):
    return {name.removeprefix("transformer."): torch.from_numpy(a.copy()) for name, a in arrays(path).items()}


def theirs(name, tensor):
    """GPT-2's name and layout as torch_gpt.py has it: matrices of linear layers are [in, out] there."""
    parts = name.split(".")
    if parts[0] != "h":
        return name, tensor
    layer = ".".join(parts[2:-1])
    matrix = parts[-1] == "weight" and not layer.startswith("ln")
    return f"blocks.{parts[1]}.{NAMES[layer]}.{parts[-1]}", tensor.t() if matrix else tensor


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def check(bias, folder):
    # Exactly one window, so that every sequence of every batch is known.
    tokens = np.array([(i * i * 7 + i * 3) % VOCAB for i in range(BLOCK + 1)], dtype=np.uint16)
    tokens.tofile(f"{folder}/window.bin")
    with open(f"{folder}/model.toml", "w") as f:
        f.write(f"""out_dir = "{folder}/out"
[model]
n_layer = 2
n_head = 2
n_embd = 32
vocab_size = {VOCAB}
block_size = {BLOCK}
bias = {str(bias).lower()}
dropout = 0.0
[train]
steps = 2
micro_batch = 2
global_batch_tokens = {2 * BLOCK}
grad_clip = 1.0
[optimizer]
lr = {LR}
betas = [0.9, 0.95]
weight_decay = 0.1
warmup_steps = 0
schedule = "constant"
[data]
train = "{folder}/window.bin"
[eval]
every = 0
[checkpoint]
every = 1
keep = 2
[log]
every = 1
""")
    run(f"{BIN}/gptc", "compile", f"{folder}/model.toml", "-o", f"{folder}/plan")
    run(f"{BIN}/gptrun", f"{folder}/plan")
    losses = {r["step"]: r["loss"] for r in map(json.loads, open(f"{folder}/out/log.jsonl")) if "loss" in r}
    first = safetensors(f"{folder}/out/checkpoints/step-00000001/model.safetensors")

    o = torch_gpt.with_settings(
        dict(layers=2, heads=2, width=32, vocab=VOCAB, block=BLOCK, batch=2, bias=bias, adamw="foreach")
    )
    trainer = torch_gpt.Trainer(o, lr=LR)
    mine = dict(trainer.model.named_parameters())
    given = dict(theirs(name, t) for name, t in first.items())
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in given.items()}:
        sys.exit(f"parameters differ: {sorted(mine)} and {sorted(given)}")
    with torch.no_grad():
        for name, p in mine.items():
            p.copy_(given[name])
    x = torch.from_numpy(tokens.astype(np.int64))
    loss = trainer.step(x[None, :-1].repeat(2, 1), x[None, 1:].repeat(2, 1)).item()
    # Both in fp32; each sum has at most 65 terms, and 2^-24 x 65 is 4e-6.
    if abs(loss / losses[2] - 1) > 1e-5:
        sys.exit(f"bias {bias}: the loss is {loss}, not {losses[2]}")
    print(f"bias {bias}: {sum(p.numel() for p in mine.values())} parameters, loss {loss:.6f} and {losses[2]:.6f}")


with tempfile.TemporaryDirectory() as folder:
    for bias in (True, False):
        os.makedirs(f"{folder}/{bias}")
        check(bias, f"{folder}/{bias}")
