#!/usr/bin/env python3
"""Trains a classifier of texts by transformers, and compares losses and what came of them with gptc's.

  labels_compare.py FOLDER TEXTS LOG MINE TEXT LOGITS

FOLDER: the model that both begin with. TEXTS: JSON lines of texts and labels, all of which are one batch, padded to the longest.
LOG: gptc's log.jsonl, of ten steps of AdamW at 0.003. MINE: what gptc has exported. TEXT: one that it gives LOGITS. Exit status: 0
equal, 1 not, 77 transformers or PyTorch is missing.
"""
import json
import sys

sys.dont_write_bytecode = True
from opened import AutoModelForSequenceClassification, opened, torch, transformers


def ids_of(text):
    return [2] + [int(word[1:]) for word in text.split()] + [3]


def targets(config, labels):
    if config.problem_type == "regression":
        return torch.tensor(labels, dtype=torch.float32)
    if config.problem_type == "multi_label_classification":
        return torch.tensor([[float(config.id2label[i] in right) for i in range(config.num_labels)] for right in labels])
    return torch.tensor([config.label2id[label] for label in labels])


def main():
    folder, texts, log, mine, text, logits = sys.argv[1:]
    model = opened(AutoModelForSequenceClassification, folder)  # without dropout, as the run was
    examples = [json.loads(line) for line in open(texts, encoding="utf-8")]
    rows = [ids_of(e["text"]) for e in examples]
    longest = max(map(len, rows))
    ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
    labels = targets(model.config, [e["label"] for e in examples])
    # Decay is of matrices only.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=0.003, betas=(0.9, 0.95), eps=1e-8)
    wanted = [entry["loss"] for entry in map(json.loads, open(log, encoding="utf-8")) if "loss" in entry]
    if len(wanted) != 10:
        sys.exit(f"{len(wanted)} losses in {log}")
    worst = 0
    for want in wanted:
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        worst = max(worst, abs(loss.item() / want - 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"transformers {transformers.__version__}: losses {wanted[0]:.6f} to {wanted[-1]:.6f}, which differ by {worst:.1e} at most")
    if not worst <= 1e-5:
        sys.exit("the losses differ")
    there = opened(AutoModelForSequenceClassification, mine)
    row = torch.tensor([ids_of(text)])
    with torch.no_grad():
        found = there(input_ids=row, attention_mask=torch.ones_like(row)).logits[0].double()
    far = (found - torch.tensor(json.loads(logits), dtype=torch.float64)).abs().max().item()
    print(f"logits of {there.config.id2label} differ by {far:.1e}")
    if not far <= 1e-5:
        sys.exit("the logits differ")


main()
