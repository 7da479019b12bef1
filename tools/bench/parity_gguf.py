"""`tools/bench/parity gguf` and `tools/bench/parity smollm2`: what llama.cpp computes with our GGUF files.

Weights and cache in F32, no flash attention, one thread. llama.cpp is to be built without GGML_GELU_FP16.
"""
import json
import os
import random
import sys
import tempfile

from parity_models import VOCAB, Work, exported, train, windows

CONTEXT, GREEDY = 256, 200
MOST = 1e-3  # largest absolute difference of logits; closer ones are ties
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
    theirs, llama = exported(work), Model(work.path("f32.gguf"), CONTEXT)
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
    require("numpy", "torch", "transformers", "llama_cpp")
    import llama_cpp
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"llama-cpp-python {llama_cpp.__version__}, transformers {transformers.__version__}, {options.steps} steps\n")
    print("| family | loss in gptc | loss in llama.cpp | largest difference of logits | greedy tokens equal |\n"
          "|---|---|---|---|---|", flush=True)
    bad = False
    for family in GGUF_FAMILIES:
        if options.only not in family:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                cells, differs = compare(bin, folder, family, options.steps)
            except RuntimeError as e:
                cells, differs = f"failed: {str(e).splitlines()[0]} | | |", True
        bad = bad or differs
        print(f"| {family} | {cells} |", flush=True)
    return bad
