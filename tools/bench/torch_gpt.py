"""A GPT in PyTorch for tools/bench/peers: what a careful user of PyTorch would write for a CPU, with whatever this
version of it offers (fused attention, fused AdamW, oneDNN's products, torch.compile). The peer's settings are options
(peer_settings.py).

    torch_gpt.py            a server: one line of JSON when it is ready, then an answer for every line of its input
    torch_gpt.py job JSON   trains to the end on token files, with evaluations, and prints one line of JSON

A server's line is {"options": {"layers": 4, "heads": 4, "width": 128, "vocab": 65, "block": 64, "batch": 12, ...},
"warm": W, "steps": N, "limit": ms}: it builds that model unless it has it, takes W steps that do not count and N that
do (or samples tokens), and answers {"ms": [...], "loss": first loss} or {"error": "..."}. With a limit, it gives up
when a step past the first takes longer. It ends with its input.
"""

import gc
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MODEL = {"dropout": 0.0, "bias": True, "compute": "fp32", "mode": "train"}
# "threads" 0 is PyTorch's own choice; the names and values are those of peer_settings.MODEL.
SETTINGS = {
    "threads": 0,
    "linear": "torch",
    "mkldnn": "on",
    "adamw": "fused",
    "denormal": "kept",
    "weights": "autocast",
    "compile": "no",
}


class OneDnnLinear(torch.autograd.Function):
    """y = x W^T + b with all three products by oneDNN, which PyTorch leaves to its BLAS in fp32."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        product = lambda a, b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        dy2, x2 = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = product(dy2, weight.t()).view(x.shape)
        return dx, product(dy2.t(), x2.t()), dy2.sum(0) if ctx.biased else None


class Block(nn.Module):
    def __init__(self, o, linear):
        super().__init__()
        w, bias = o["width"], o["bias"]
        self.linear, self.heads, self.p = linear, o["heads"], o["dropout"]
        self.ln_1, self.ln_2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w, bias=bias), nn.Linear(w, w, bias=bias)
        self.fc, self.out = nn.Linear(w, 4 * w, bias=bias), nn.Linear(4 * w, w, bias=bias)
        if not hasattr(F, "scaled_dot_product_attention"):
            self.register_buffer(
                "hidden", torch.ones(o["block"], o["block"], dtype=torch.bool).triu(1), persistent=False
            )

    def attention(self, q, k, v, causal):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=causal)
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
        if causal:
            scores = scores.masked_fill(self.hidden[: q.shape[2], : k.shape[2]], float("-inf"))
        return F.dropout(scores.softmax(-1), self.p, self.training) @ v

    def forward(self, x, cache=None):
        b, t, w = x.shape
        apply = lambda layer, h: self.linear(h, layer.weight, layer.bias)
        qkv = apply(self.qkv, self.ln_1(x))
        q, k, v = (y.view(b, t, self.heads, w // self.heads).transpose(1, 2) for y in qkv.split(w, 2))
        causal = True
        if cache is not None:
            at = cache["at"]
            cache["k"][:, :, at : at + t], cache["v"][:, :, at : at + t] = k, v
            k, v, causal = cache["k"][:, :, : at + t], cache["v"][:, :, : at + t], t > 1
            cache["at"] += t
        y = self.attention(q, k, v, causal).transpose(1, 2).reshape(b, t, w)
        x = x + F.dropout(apply(self.proj, y), self.p, self.training)
        h = F.gelu(apply(self.fc, self.ln_2(x)), approximate="tanh")
        return x + F.dropout(apply(self.out, h), self.p, self.training)


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.linear = OneDnnLinear.apply if o["linear"] == "onednn" else F.linear
        self.wte, self.wpe = nn.Embedding(o["vocab"], o["width"]), nn.Embedding(o["block"], o["width"])
        self.blocks = nn.ModuleList(Block(o, self.linear) for _ in range(o["layers"]))
        self.ln_f = nn.LayerNorm(o["width"])
        if not o["bias"]:
            self.without_norm_biases()
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def without_norm_biases(self):
        for m in self.modules():
            if isinstance(m, nn.LayerNorm):
                m.register_parameter("bias", None)

    def forward(self, x, targets=None, caches=None):
        at = caches[0]["at"] if caches else 0
        h = F.dropout(self.wte(x) + self.wpe(torch.arange(at, at + x.shape[1])), self.o["dropout"], self.training)
        for i, block in enumerate(self.blocks):
            h = block(h, caches[i] if caches else None)
        if targets is None:
            return F.linear(self.ln_f(h[:, -1:]), self.wte.weight)
        logits = self.linear(self.ln_f(h), self.wte.weight, None)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def compiled(run, how):
    if how == "no":
        return run
    return torch.compile(run) if how == "default" else torch.compile(run, mode=how)


class Trainer:
    """One model with its optimizer: AdamW with clipping, moments and the parameters that it steps in fp32."""

    def __init__(self, o, lr=6e-4, betas=(0.9, 0.95)):
        self.o, self.model = o, GPT(o)
        self.low = o["compute"] == "bf16"
        self.masters = list(self.model.parameters())
        if self.low and o["weights"] == "bf16, fp32 masters":
            # Gradients come in bf16 then; the optimizer steps fp32 copies, which are rounded back into the model.
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.masters]
            self.model.to(torch.bfloat16)
        groups = [
            {"params": [p for p in self.masters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in self.masters if p.dim() < 2], "weight_decay": 0.0},
        ]
        kind = o["adamw"]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, **({} if kind == "plain" else {kind: True}))
        self.clip = {"foreach": True} if kind != "plain" and int(torch.__version__.split(".")[0]) >= 2 else {}
        self.run = compiled(self.model, o["compile"])

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.low and self.o["weights"] == "autocast"):
            return self.run(x, y)

    def step(self, x, y):
        loss = self.loss(x, y)
        loss.backward()
        copies = list(self.model.parameters())
        if self.masters[0] is not copies[0]:
            for m, p in zip(self.masters, copies):
                m.grad, p.grad = p.grad.float(), None
        nn.utils.clip_grad_norm_(self.masters, 1.0, **self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters[0] is not copies[0]:
            with torch.no_grad():
                (
                    torch._foreach_copy_(copies, self.masters)
                    if hasattr(torch, "_foreach_copy_")
                    else [p.copy_(m) for m, p in zip(self.masters, copies)]
                )
        return loss


def training(o):
    trainer = Trainer(o)
    tokens = torch.randint(0, o["vocab"], (o["batch"], o["block"] + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return lambda: trainer.step(x, y).item()


def sampling(o):
    dtype = torch.bfloat16 if o["compute"] == "bf16" else torch.float32
    model = GPT(o).eval().to(dtype)
    run = compiled(model, o["compile"])
    shape = (1, o["heads"], o["block"], o["width"] // o["heads"])
    caches = [
        {"k": torch.zeros(shape, dtype=dtype), "v": torch.zeros(shape, dtype=dtype), "at": 0}
        for _ in range(o["layers"])
    ]
    state = {"token": torch.zeros(1, 1, dtype=torch.long)}

    @torch.no_grad()
    def step():
        if caches[0]["at"] >= o["block"]:
            for c in caches:
                c["at"] = 0
        logits = run(state["token"], caches=caches)[:, -1].float()
        state["token"] = torch.multinomial(logits.softmax(-1), 1)
        return 0.0

    return step


def with_settings(options):
    """The options with defaults, after those of them that belong to the process are set."""
    o = {**MODEL, **SETTINGS, **options}
    if o["threads"]:
        torch.set_num_threads(o["threads"])
    torch.backends.mkldnn.set_flags(o["mkldnn"] == "on")
    torch.set_flush_denormal(o["denormal"] == "flushed")
    torch.manual_seed(1337)
    return o


def serve():
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "config": torch.__config__.show(),
                "threads": torch.get_num_threads(),
                "onednn_linear": has_onednn_linear(),
                "sdpa": hasattr(F, "scaled_dot_product_attention"),
                "compile": hasattr(torch, "compile"),
            }
        ),
        flush=True,
    )
    current, step = None, None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["options"] != current:
                current = step = None
                gc.collect()
                o = with_settings(order["options"])
                step = (sampling if o["mode"] == "sample" else training)(o)
                current = order["options"]
            losses, times, limit = [], [], order.get("limit", 0)
            for i in range(order.get("warm", 0) + order["steps"]):
                begin = time.perf_counter()
                losses.append(step())
                times.append(1e3 * (time.perf_counter() - begin))
                if limit and i and times[-1] > limit:
                    raise RuntimeError(f"a step of {times[-1]:.0f} ms")
            times = times[order.get("warm", 0) :]
            answer = {"ms": times, "loss": losses[0] if losses else None}
        except Exception as e:  # a setting that this version does not have: the peer goes on without it
            answer = {"error": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"}
            current = step = None
        print(json.dumps(answer), flush=True)


def has_onednn_linear():
    try:
        return bool(torch.ops.mkldnn._linear_pointwise)
    except (AttributeError, RuntimeError):
        return False


def job(options):
    """Trains on random windows of a token file by the schedule of the model file, with evaluations on the other
    file."""
    import numpy

    o = with_settings(options)
    data = {k: torch.from_numpy(numpy.fromfile(o[k], dtype=numpy.uint16).astype(numpy.int64)) for k in ("train", "val")}
    windows = torch.arange(o["block"])
    trainer = Trainer(o, lr=o["lr"], betas=(0.9, 0.99))

    def batch(part):
        at = torch.randint(len(data[part]) - o["block"] - 1, (o["batch"], 1)) + windows
        return data[part][at], data[part][at + 1]

    @torch.no_grad()
    def evaluate():
        trainer.model.eval()
        mean = sum(trainer.loss(*batch("val")).item() for _ in range(o["eval_steps"])) / o["eval_steps"]
        trainer.model.train()
        return mean

    for step in range(1, o["steps"] + 1):
        part = (step - o["warmup"]) / (o["steps"] - o["warmup"])
        lr = o["lr"] * (step / o["warmup"] if step <= o["warmup"] else 0.1 + 0.45 * (1 + math.cos(math.pi * part)))
        for group in trainer.optimizer.param_groups:
            group["lr"] = lr
        trainer.step(*batch("train"))
        if step % o["eval_every"] == 0 or step == o["steps"]:
            val = evaluate()
    print(json.dumps({"val_loss": val}))


if __name__ == "__main__":
    job(json.loads(sys.argv[2])) if sys.argv[1:2] == ["job"] else serve()
