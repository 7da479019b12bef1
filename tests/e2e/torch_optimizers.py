#!/usr/bin/env python3
"""Goes on training with PyTorch's optimizer from a checkpoint, and compares the parameters with those of a later one.

  torch_optimizers.py CHECKPOINT LATER TOKENS adamw|sgd|nesterov|adafactor

Model and tokens are as in torch_compare.py; the recipe is that of TorchOptimizer in torch_test.cpp. PyTorch computes in float64. Exit
status: 0 equal, 1 not, 77 PyTorch is missing, 78 it has no such optimizer.
"""
import json
import sys

sys.dont_write_bytecode = True
import torch_compare
from torch_compare import gpt_loss, np, safetensors, torch


def optimizer_of(kind, groups):
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=0.001, betas=(0.9, 0.95), eps=1e-8)
    if kind == "adafactor":
        if not hasattr(torch.optim, "Adafactor"):
            print("skipped: this PyTorch has no Adafactor")
            sys.exit(78)
        return torch.optim.Adafactor(groups, lr=0.01, eps=(2.0**-23, 1e-3))
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=kind == "nesterov")


def state_of(kind, name, t, moments, step):
    """What the optimizer holds for parameter `name` after `step` steps."""
    if kind == "adamw":
        return {"step": torch.tensor(float(step)), "exp_avg": moments["m." + name], "exp_avg_sq": moments["v." + name]}
    if kind != "adafactor":
        return {"momentum_buffer": moments["momentum." + name]}
    state = {"step": torch.tensor(float(step))}
    if t.dim() == 1:
        return {**state, "variance": moments["v." + name]}
    return {**state, "row_var": moments["row." + name][:, None], "col_var": moments["column." + name][None, :]}


def compared(name, t):
    """A bias of keys adds the same to all scores of a query: its gradient is zero but for rounding, which AdamW divides by its own size."""
    third = len(t) // 3
    return torch.cat([t[:third], t[2 * third :]]) if name.endswith("attn.c_attn.bias") else t


def main():
    before, after, tokens, kind = sys.argv[1:5]
    p = safetensors(before + "/model.safetensors")
    want = safetensors(after + "/model.safetensors")
    moments = safetensors(before + "/state/optimizer.safetensors")
    first, last = (int(json.load(open(d + "/manifest.json"))["step"]) for d in (before, after))
    start = {name: t.clone() for name, t in p.items()}
    for t in p.values():
        t.requires_grad_(True)
    groups = [
        {"params": [t for t in p.values() if t.dim() > 1], "weight_decay": 0.1},
        {"params": [t for t in p.values() if t.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = optimizer_of(kind, groups)
    for name, t in p.items():
        optimizer.state[t] = state_of(kind, name.removeprefix("transformer."), t, moments, first)
    ids = torch.tensor(np.fromfile(tokens, dtype=np.uint16).astype(np.int64))
    for _ in range(first, last):
        optimizer.zero_grad()
        gpt_loss(p, ids[None, :-1], ids[None, 1:], 2, "gelu_tanh").backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
    errors = {}
    for name, t in p.items():
        moved = compared(name, t - start[name]).norm()
        errors[name] = (compared(name, t - want[name]).norm() / moved).item()
    name = max(errors, key=errors.get)
    print(f"{kind}: after {last - first} steps of {len(errors)} parameters {name} differs most, by {errors[name]:.1e} of its way")
    sys.exit(0 if errors[name] < 5e-4 else 1)


main()
