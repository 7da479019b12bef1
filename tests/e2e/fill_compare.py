#!/usr/bin/env python3
"""Fills masks by the pipeline of transformers, and compares tokens and scores with gptc's.

  fill_compare.py FOLDER TEXTS FILLED

TEXTS: one a line, each with masks. FILLED: what `gptrun fill-mask` says of them, with five tokens for each mask. Exit status: 0
equal, 1 not, 77 transformers or PyTorch is missing.
"""
import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
try:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer, __version__, pipeline
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)


def main():
    folder, texts, filled = sys.argv[1:]
    model, info = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{kind}: {info[kind]}")
    fill = pipeline("fill-mask", model=model.eval(), tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu", top_k=5)
    lines = open(texts, encoding="utf-8").read().splitlines()
    ours = [json.loads(line) for line in open(filled, encoding="utf-8")]
    if len(lines) != len(ours):
        sys.exit(f"{len(lines)} texts, and {len(ours)} lines")
    worst = masks = 0
    for text, line in zip(lines, ours):
        theirs = fill(text)
        if isinstance(theirs[0], dict):  # of one mask
            theirs = [theirs]
        if len(theirs) != len(line["masks"]):
            sys.exit(f"{text!r}: {len(theirs)} masks, and here {len(line['masks'])}")
        for want, got in zip(theirs, line["masks"]):
            masks += 1
            if [w["token"] for w in want] != [c["token"] for c in got["choices"]]:
                sys.exit(f"{text!r}, place {got['place']}: {want}, and here {got['choices']}")
            worst = max([worst] + [abs(w["score"] - c["score"]) for w, c in zip(want, got["choices"])])
    print(f"transformers {__version__}: {masks} masks, whose scores differ by {worst:.1e} at most")
    if not worst <= 2e-5:
        sys.exit("the scores differ")


warnings.simplefilter("ignore")
main()
