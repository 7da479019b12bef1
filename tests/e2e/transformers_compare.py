#!/usr/bin/env python3
"""Opens a model's folder by transformers, with nothing else, and compares loss and tokens with gptc's.

  transformers_compare.py FOLDER TOKENS BLOCK LOSS TOLERANCE [TEXT IDS]

TOKENS: 16-bit tokens, of which transformers computes the mean loss over all windows of BLOCK without overlap. TEXT: a file that
AutoTokenizer must turn into IDS (numbers apart by blanks) and back. Exit status: 0 equal, 1 not, 77 transformers or PyTorch is missing.
"""
import sys

sys.dont_write_bytecode = True
from opened import AutoModelForCausalLM, AutoTokenizer, opened, torch, transformers

import numpy as np  # which transformers needs


def main():
    folder, tokens, block, want, tolerance = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    model = opened(AutoModelForCausalLM, folder)
    t = torch.from_numpy(np.fromfile(tokens, dtype=np.uint16).astype(np.int64))
    starts = range(0, len(t) - 1, block)
    whole = [t[s : s + block + 1] for s in starts if s + block < len(t)]
    batches = [torch.stack(whole[i : i + 64]) for i in range(0, len(whole), 64)]
    if len(whole) < len(starts):
        batches.append(t[starts[-1] :][None])
    losses = []
    with torch.no_grad():
        for rows in batches:
            logits = model(rows[:, :-1]).logits.double()
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none"))
    loss = torch.cat(losses).mean().item()
    print(f"transformers {transformers.__version__}: {type(model).__name__}, loss {loss:.7f}, gptc's {want:.7f}\nmeasured losses: {abs(loss / want - 1):.2g}")
    if not abs(loss / want - 1) <= tolerance:
        sys.exit("the losses differ")
    if len(sys.argv) > 6:
        text, ids = open(sys.argv[6], encoding="utf-8", newline="").read(), [int(i) for i in sys.argv[7].split()]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer.encode(text, add_special_tokens=False) != ids:
            sys.exit(f"{type(tokenizer).__name__} gives {tokenizer.encode(text)}, gptc {ids}")
        if tokenizer.decode(ids) != text:
            sys.exit(f"{type(tokenizer).__name__} decodes them to {tokenizer.decode(ids)!r}")
        if tokenizer.eos_token_id != model.generation_config.eos_token_id:
            sys.exit(f"texts end with {tokenizer.eos_token_id} and {model.generation_config.eos_token_id}")
        model.generate(**tokenizer(text[:4], return_tensors="pt"), max_new_tokens=1)
        print(f"{type(tokenizer).__name__}: {len(ids)} tokens")


main()
