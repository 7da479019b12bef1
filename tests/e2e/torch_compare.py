#!/usr/bin/env python3
"""Compares one training step with PyTorch: loss and the gradient of every parameter, on the same weights and tokens.

  torch_compare.py CHECKPOINT NEXT_CHECKPOINT LOG TOKENS n_head beta1 grad_clip loss_bound gradient_bound [activation]

Families are told by what is in the checkpoint: Llama by its names; without wpe, positions are ALiBi's.

CHECKPOINT is a folder saved after step k and NEXT_CHECKPOINT one saved after step k+1; TOKENS is a raw uint16 file of exactly
block_size + 1 tokens, so that every sequence of every batch is the same window. The gradient is recovered from AdamW's first moment,
m' = beta1 m + (1 - beta1) g s, where s is the clipping factor, recomputed here from PyTorch's own gradient norm.
PyTorch computes in float64, so that what is measured is our error alone. Exit status: 0 equal, 1 not, 77 PyTorch is missing.
"""
import json
import sys

sys.dont_write_bytecode = True
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors_file import arrays
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def safetensors(path):
    return {name.removeprefix("transformer."): torch.tensor(a.astype(np.float64)) for name, a in arrays(path).items()}


ACTIVATIONS = {
    "gelu_tanh": lambda h: 0.5 * h * (1 + torch.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h**3))),
    "geglu": F.gelu,
    "relu2": lambda h: F.relu(h) ** 2,
}


def attention(q, k, v, bias):
    """Causal attention of [B, heads, T, D], fewer heads of keys and values being repeated."""
    T, D, group = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    mask = torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)
    o = torch.softmax(q @ k.transpose(2, 3) / D**0.5 + bias + mask, dim=3) @ v
    return o.transpose(1, 2).reshape(q.shape[0], T, -1)


def alibi(n_head, T):
    """[heads, T, T], by the rule of the paper for any number of heads."""

    def powers(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    whole = 2 ** (n_head.bit_length() - 1)
    slopes = powers(whole) + powers(2 * whole)[0::2][: n_head - whole]
    distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
    return torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance


def rotated(x):
    """Hugging Face's Llama: x cos + rotate_half(x) sin, angles repeated for both halves."""
    T, D = x.shape[2:]
    angle = torch.arange(T, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.cat([angle, angle], dim=1)
    half = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], dim=-1)
    return x * angle.cos() + half * angle.sin()


def gpt_loss(p, x, y, n_head, activation):
    """GPT-2's forward pass on Hugging Face's weight names and layouts ([in, out] matrices), and what BLOOM and gates change."""
    B, T = x.shape
    layers = 1 + max(int(k.split(".")[1]) for k in p if k.startswith("h."))
    C = p["wte.weight"].shape[1]
    D = C // n_head
    norm = lambda h, name: F.layer_norm(h, (C,), p[name + ".weight"], p.get(name + ".bias"), 1e-5)

    def linear(h, name):
        h = h @ p[name + ".weight"]
        return h + p[name + ".bias"] if name + ".bias" in p else h

    act = ACTIVATIONS[activation]
    learned = "wpe.weight" in p
    h = p["wte.weight"][x] + (p["wpe.weight"][:T] if learned else 0)
    if "word_embeddings_layernorm.weight" in p:
        h = norm(h, "word_embeddings_layernorm")
    for i in range(layers):
        qkv = linear(norm(h, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        keys = (qkv.shape[2] - C) // 2
        q, k, v = (t.view(B, T, -1, D).transpose(1, 2) for t in qkv.split([C, keys, keys], dim=2))
        h = h + linear(attention(q, k, v, 0 if learned else alibi(n_head, T)), f"h.{i}.attn.c_proj")
        n = norm(h, f"h.{i}.ln_2")
        hidden = linear(n, f"h.{i}.mlp.c_fc")
        gated = f"h.{i}.mlp.c_gate.weight" in p
        hidden = act(linear(n, f"h.{i}.mlp.c_gate")) * hidden if gated else act(hidden)
        h = h + linear(hidden, f"h.{i}.mlp.c_proj")
    logits = norm(h, "ln_f") @ p.get("lm_head.weight", p["wte.weight"]).T
    return F.cross_entropy(logits.view(B * T, -1), y.reshape(-1))


def llama_loss(p, x, y, n_head):
    """Llama's forward pass on Hugging Face's weight names and layouts ([out, in] matrices)."""
    B, T = x.shape
    layers = 1 + max(int(k.split(".")[2]) for k in p if k.startswith("model.layers."))
    D = p["model.embed_tokens.weight"].shape[1] // n_head
    norm = lambda h, name: h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[name + ".weight"]
    h = p["model.embed_tokens.weight"][x]
    for i in range(layers):
        at = f"model.layers.{i}."
        linear = lambda h, name: h @ p[at + name + ".weight"].T
        n = norm(h, at + "input_layernorm")
        q, k, v = (linear(n, f"self_attn.{w}_proj").view(B, T, -1, D).transpose(1, 2) for w in "qkv")
        h = h + linear(attention(rotated(q), rotated(k), v, 0), "self_attn.o_proj")
        n = norm(h, at + "post_attention_layernorm")
        h = h + linear(F.silu(linear(n, "mlp.gate_proj")) * linear(n, "mlp.up_proj"), "mlp.down_proj")
    logits = norm(h, "model.norm") @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T
    return F.cross_entropy(logits.view(B * T, -1), y.reshape(-1))


def gradients(p):
    """Of each parameter under our own name and layout, which moments have."""
    if "model.embed_tokens.weight" not in p:
        return {name: t.grad for name, t in p.items()}
    outside = {"model.embed_tokens.weight": "wte.weight", "model.norm.weight": "ln_f.weight", "lm_head.weight": "lm_head.weight"}
    inside = {
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.o_proj": "attn.c_proj",
        "mlp.gate_proj": "mlp.c_gate",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    }
    g = {ours: p[theirs].grad for theirs, ours in outside.items() if theirs in p}
    for i in range(1 + max(int(k.split(".")[2]) for k in p if k.startswith("model.layers."))):
        at = f"model.layers.{i}."
        for theirs, ours in inside.items():
            g[f"h.{i}.{ours}.weight"] = p[at + theirs + ".weight"].grad.t()
        parts = [p[f"{at}self_attn.{w}_proj.weight"].grad for w in "qkv"]
        g[f"h.{i}.attn.c_attn.weight"] = torch.cat(parts).t()
    return g


def main():
    before, after, log, tokens = sys.argv[1:5]
    n_head, beta1, clip = int(sys.argv[5]), float(sys.argv[6]), float(sys.argv[7])
    loss_bound, gradient_bound = float(sys.argv[8]), float(sys.argv[9])
    p = safetensors(before + "/model.safetensors")
    for t in p.values():
        t.requires_grad_(True)
    ids = torch.tensor(np.fromfile(tokens, dtype=np.uint16).astype(np.int64))
    x, y = ids[None, :-1], ids[None, 1:]
    if "model.embed_tokens.weight" in p:
        loss = llama_loss(p, x, y, n_head)
    else:
        loss = gpt_loss(p, x, y, n_head, sys.argv[10] if len(sys.argv) > 10 else "gelu_tanh")
    loss.backward()

    step = int(json.load(open(before + "/manifest.json"))["step"])
    ours = next(r["loss"] for r in map(json.loads, open(log)) if r.get("step") == step + 1 and "loss" in r)
    worst = [("loss", abs(ours - loss.item()) / abs(loss.item()), loss_bound)]
    norm = sum(t.grad.square().sum() for t in p.values()).sqrt().item()
    scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    m0, m1 = (safetensors(d + "/state/optimizer.safetensors") for d in (before, after))
    for name, want in gradients(p).items():
        g = (m1["m." + name] - beta1 * m0["m." + name]) / (1 - beta1) / scale
        worst.append((name, ((g - want).norm() / want.norm()).item(), gradient_bound))
    bad = [w for w in worst if not w[1] <= w[2]]
    for name, error, bound in bad or [max(worst[1:], key=lambda w: w[1])]:
        print(f"{name}: relative error {error:.2e}, bound {bound:.0e}")
    print(f"{len(worst) - len(bad)} of {len(worst)} agree; loss {ours:.6f} against {loss.item():.6f}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
