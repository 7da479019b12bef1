#!/usr/bin/python3
"""Compares one training step with PyTorch: loss and the gradient of every parameter, on the same weights and tokens.

  torch_compare.py CHECKPOINT NEXT_CHECKPOINT LOG TOKENS n_head beta1 grad_clip loss_bound gradient_bound

CHECKPOINT is a folder saved after step k and NEXT_CHECKPOINT one saved after step k+1; TOKENS is a raw uint16 file of exactly
block_size + 1 tokens, so that every sequence of every batch is the same window. The gradient is recovered from AdamW's first moment,
m' = beta1 m + (1 - beta1) g s, where s is the clipping factor, recomputed here from PyTorch's own gradient norm.
PyTorch computes in float64, so that what is measured is our error alone. Exit status: 0 equal, 1 not, 77 PyTorch is missing.
"""
import json
import struct
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        a = np.frombuffer(data[8 + n + begin : 8 + n + end], dtype=np.float32)
        tensors[name] = torch.tensor(a.reshape(entry["shape"]).astype(np.float64))
    return tensors


def loss_of(p, x, y, n_head):
    """GPT-2's forward pass on Hugging Face's weight names and layouts ([in, out] matrices)."""
    B, T = x.shape
    layers = 1 + max(int(k.split(".")[1]) for k in p if k.startswith("h."))
    C = p["wte.weight"].shape[1]
    norm = lambda h, name: F.layer_norm(h, (C,), p[name + ".weight"], p.get(name + ".bias"), 1e-5)

    def linear(h, name):
        h = h @ p[name + ".weight"]
        return h + p[name + ".bias"] if name + ".bias" in p else h

    gelu = lambda h: 0.5 * h * (1 + torch.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h**3)))
    h = p["wte.weight"][x] + p["wpe.weight"][:T]
    mask = torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)
    for i in range(layers):
        q, k, v = linear(norm(h, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(C, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        a = torch.softmax(q @ k.transpose(2, 3) / (C // n_head) ** 0.5 + mask, dim=3) @ v
        h = h + linear(a.transpose(1, 2).reshape(B, T, C), f"h.{i}.attn.c_proj")
        h = h + linear(gelu(linear(norm(h, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    logits = norm(h, "ln_f") @ p.get("lm_head.weight", p["wte.weight"]).T
    return F.cross_entropy(logits.view(B * T, -1), y.reshape(-1))


def main():
    before, after, log, tokens = sys.argv[1:5]
    n_head, beta1, clip = int(sys.argv[5]), float(sys.argv[6]), float(sys.argv[7])
    loss_bound, gradient_bound = float(sys.argv[8]), float(sys.argv[9])
    p = safetensors(before + "/model.safetensors")
    for t in p.values():
        t.requires_grad_(True)
    ids = torch.tensor(np.fromfile(tokens, dtype=np.uint16).astype(np.int64))
    loss = loss_of(p, ids[None, :-1], ids[None, 1:], n_head)
    loss.backward()

    step = int(json.load(open(before + "/manifest.json"))["step"])
    ours = next(r["loss"] for r in map(json.loads, open(log)) if r.get("step") == step + 1 and "loss" in r)
    worst = [("loss", abs(ours - loss.item()) / abs(loss.item()), loss_bound)]
    norm = sum(t.grad.square().sum() for t in p.values()).sqrt().item()
    scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    m0, m1 = (safetensors(d + "/optimizer.safetensors") for d in (before, after))
    for name, t in p.items():
        g = (m1["m." + name] - beta1 * m0["m." + name]) / (1 - beta1) / scale
        worst.append((name, ((g - t.grad).norm() / t.grad.norm()).item(), gradient_bound))
    bad = [w for w in worst if not w[1] <= w[2]]
    for name, error, bound in bad or [max(worst[1:], key=lambda w: w[1])]:
        print(f"{name}: relative error {error:.2e}, bound {bound:.0e}")
    print(f"{len(worst) - len(bad)} of {len(worst)} agree; loss {ours:.6f} against {loss.item():.6f}")
    sys.exit(1 if bad else 0)


main()
