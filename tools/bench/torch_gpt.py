"""A GPT in PyTorch, trained or sampled on random tokens, for tools/bench/peers: what a careful user of PyTorch would write for
a CPU, with whatever this version of it offers (fused attention, fused AdamW, torch.compile).

    torch_gpt.py '{"layers": 4, "heads": 4, "width": 128, "vocab": 65, "block": 64, "batch": 12, ...}'

Prints one line of JSON when it is ready. Then for each line N on its standard input it takes N steps (or samples N tokens)
and prints their milliseconds as a JSON list. It ends with its input.
"""
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

options = {"dropout": 0.0, "bias": True, "compute": "fp32", "compile": False, "threads": 0, "mode": "train"}
options.update(json.loads(sys.argv[1]))
if options["threads"]:
    torch.set_num_threads(options["threads"])
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        w, bias = o["width"], o["bias"]
        self.heads, self.p = o["heads"], o["dropout"]
        self.ln_1, self.ln_2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w, bias=bias), nn.Linear(w, w, bias=bias)
        self.fc, self.out = nn.Linear(w, 4 * w, bias=bias), nn.Linear(4 * w, w, bias=bias)
        if not hasattr(F, "scaled_dot_product_attention"):
            self.register_buffer("hidden", torch.ones(o["block"], o["block"], dtype=torch.bool).triu(1), persistent=False)

    def attention(self, q, k, v, causal):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=causal)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(self.hidden[: q.shape[2], : k.shape[2]], float("-inf"))
        return F.dropout(scores.softmax(-1), self.p, self.training) @ v

    def forward(self, x, cache=None):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, w // self.heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(w, 2))
        causal = True
        if cache is not None:
            at = cache["at"]
            cache["k"][:, :, at : at + t], cache["v"][:, :, at : at + t] = k, v
            k, v, causal = cache["k"][:, :, : at + t], cache["v"][:, :, : at + t], t > 1
            cache["at"] += t
        y = self.attention(q, k, v, causal).transpose(1, 2).reshape(b, t, w)
        x = x + F.dropout(self.proj(y), self.p, self.training)
        return x + F.dropout(self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh")), self.p, self.training)


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.wte, self.wpe = nn.Embedding(o["vocab"], o["width"]), nn.Embedding(o["block"], o["width"])
        self.blocks = nn.ModuleList(Block(o) for _ in range(o["layers"]))
        self.ln_f = nn.LayerNorm(o["width"])
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, x, targets=None, caches=None):
        at = caches[0]["at"] if caches else 0
        h = F.dropout(self.wte(x) + self.wpe(torch.arange(at, at + x.shape[1])), self.o["dropout"], self.training)
        for i, block in enumerate(self.blocks):
            h = block(h, caches[i] if caches else None)
        if targets is None:
            return F.linear(self.ln_f(h[:, -1:]), self.wte.weight)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def adamw(model):
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    for more in ({"fused": True}, {"foreach": True}, {}):
        try:
            return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **more), next(iter(more), "plain")
        except (TypeError, RuntimeError):
            continue


def training(o):
    model = GPT(o)
    optimizer, kind = adamw(model)
    run = torch.compile(model) if o["compile"] else model
    tokens = torch.randint(0, o["vocab"], (o["batch"], o["block"] + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o["compute"] == "bf16"):
            loss = run(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, kind


def sampling(o):
    dtype = torch.bfloat16 if o["compute"] == "bf16" else torch.float32
    model = GPT(o).eval().to(dtype)
    run = torch.compile(model) if o["compile"] else model
    shape = (1, o["heads"], o["block"], o["width"] // o["heads"])
    caches = [{"k": torch.zeros(shape, dtype=dtype), "v": torch.zeros(shape, dtype=dtype), "at": 0} for _ in range(o["layers"])]
    state = {"token": torch.zeros(1, 1, dtype=torch.long)}

    @torch.no_grad()
    def step():
        if caches[0]["at"] >= o["block"]:
            for c in caches:
                c["at"] = 0
        logits = run(state["token"], caches=caches)[:, -1].float()
        state["token"] = torch.multinomial(logits.softmax(-1), 1)

    return step, "-"


step, kind = (sampling if options["mode"] == "sample" else training)(options)
for _ in range(3):
    step()
print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "adamw": kind}), flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    print(json.dumps(times), flush=True)
