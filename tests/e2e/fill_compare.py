#!/usr/bin/env python3
"""Fills masks by the pipeline of transformers, and compares tokens and scores with gptc's.

  fill_compare.py FOLDER TEXTS FILLED

TEXTS: one a line, each with masks. FILLED: what `gptrun fill-mask` says of them, with five tokens for each mask. Exit status: 0
equal, 1 not, 77 transformers or PyTorch is missing.
"""
import json
import sys

sys.dont_write_bytecode = True
from opened import AutoModelForMaskedLM, AutoTokenizer, opened, transformers
from transformers import pipeline


def main():
    folder, texts, filled = sys.argv[1:]
    model = opened(AutoModelForMaskedLM, folder)
    fill = pipeline("fill-mask", model=model, tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu", top_k=5)
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
    print(f"transformers {transformers.__version__}: {masks} masks, whose scores differ by {worst:.1e} at most")
    if not worst <= 2e-5:
        sys.exit("the scores differ")


main()
