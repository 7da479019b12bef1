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
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

BOUND = 1e-5


def main():
    folder = sys.argv[1]
    with open(sys.argv[2], encoding="utf-8") as f:
        golden = json.load(f)
    masked = AutoConfig.from_pretrained(folder).model_type in ("bert", "modernbert")
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{kind}: {info[kind]}")
    rows = 2
    x, y = (torch.tensor(golden[name]).reshape(rows, -1) for name in ("x", "y"))
    with torch.no_grad():
        got = model.eval()(x, attention_mask=torch.ones_like(x), **({"labels": y.masked_fill(y < 0, -100)} if masked else {}))
    logits = got.logits.double()
    want = torch.tensor(golden["logits"], dtype=torch.float64).reshape(logits.shape)
    off = ((logits - want).norm() / want.norm()).item()
    # Labels of a causal model would be those of the next token; here they stand at their token.
    loss = got.loss.item() if masked else torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1).item()
    print(f"transformers {transformers.__version__}: {type(model).__name__}, loss {loss:.7f}, golden {golden['loss']:.7f}, logits {off:.1e} apart")
    print(f"measured logits: {off:.2g}\nmeasured losses: {abs(loss / golden['loss'] - 1):.2g}")
    if not (off <= BOUND and abs(loss / golden["loss"] - 1) <= BOUND):
        sys.exit("they differ")


warnings.simplefilter("ignore")
main()
