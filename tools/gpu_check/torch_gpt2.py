# GPT-2 124M in PyTorch as a user of it would write it, compiled, in bf16: torch_gpt2.py BATCH prints tokens per second
# of sequences of 1024. Exits with 77 where there is no PyTorch that sees a GPU.
import sys, time
try:
    import torch, torch.nn as nn, torch.nn.functional as F
except ImportError as e:
    print(e)
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch sees no GPU")
    sys.exit(77)

class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.a, self.m = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.a(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.m(x)), approximate="tanh"))

class GPT(nn.Module):
    def __init__(self, vocab=50304, d=768, layers=12, heads=12, block=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(block, d)
        self.blocks, self.f = nn.ModuleList(Block(d, heads) for _ in range(layers)), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight
    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for b in self.blocks:
            h = b(h)
        return F.cross_entropy(self.head(self.f(h)).flatten(0, 1), y.flatten())

torch.set_float32_matmul_precision("high")
batch, block = int(sys.argv[1]), 1024
model = torch.compile(GPT().cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
x = torch.randint(0, 50257, (batch, block + 1), device="cuda")
times = []
for step in range(30):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x[:, :-1].contiguous(), x[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
print(batch * block / sorted(times[10:])[10])
