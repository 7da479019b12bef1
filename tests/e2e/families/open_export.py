#!/usr/bin/env python3
"""Opens an exported folder by transformers, with nothing else, and compares with a golden model of this folder.

  open_export.py FOLDER GOLDEN.json

A model of bert or modernbert is opened by AutoModelForMaskedLM, every other by AutoModelForCausalLM. Logits of each token, and the mean loss of those
whose target is not masked (-1), must be the golden's within 1e-5: relative L2, fp32. Exit status: 0 equal, 1 not, 77 transformers or
PyTorch is missing.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from opened import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, opened, torch, transformers

BOUND = 1e-5


def main():
    folder = sys.argv[1]
    with open(sys.argv[2], encoding="utf-8") as f:
        golden = json.load(f)
    masked = AutoConfig.from_pretrained(folder).model_type in ("bert", "modernbert")
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model = opened(auto, folder, attn_implementation="eager")
    rows = 2
    x, y = (torch.tensor(golden[name]).reshape(rows, -1) for name in ("x", "y"))
    with torch.no_grad():
        got = model(x, attention_mask=torch.ones_like(x), **({"labels": y.masked_fill(y < 0, -100)} if masked else {}))
    logits = got.logits.double()
    want = torch.tensor(golden["logits"], dtype=torch.float64).reshape(logits.shape)
    off = ((logits - want).norm() / want.norm()).item()
    # Labels of a causal model would be those of the next token; here they stand at their token.
    loss = got.loss.item() if masked else torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1).item()
    print(f"transformers {transformers.__version__}: {type(model).__name__}, loss {loss:.7f}, golden {golden['loss']:.7f}, logits {off:.1e} apart")
    print(f"measured logits: {off:.2g}\nmeasured losses: {abs(loss / golden['loss'] - 1):.2g}")
    if not (off <= BOUND and abs(loss / golden["loss"] - 1) <= BOUND):
        sys.exit("they differ")


main()
