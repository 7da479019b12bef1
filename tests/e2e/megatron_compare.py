#!/usr/bin/env python3
"""Reads a data set that `gptc data prepare --format megatron` wrote by megatron-core.

  megatron_compare.py PREFIX DOCUMENTS

DOCUMENTS is JSON: the tokens of each document. Exit status: 0 megatron-core finds the same, 1 it does not, 77 it is
missing.
"""
import json
import sys
import warnings

warnings.filterwarnings("ignore")
try:
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDataset
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def main(prefix, expected):
    found = IndexedDataset(prefix)
    bounds = [int(b) for b in found.document_indices]
    documents = [numpy.concatenate([found[i] for i in range(begin, end)]).tolist()
                 for begin, end in zip(bounds, bounds[1:])]
    with open(expected) as file:
        wanted = json.load(file)
    if documents != wanted:
        at = next((i for i, (a, b) in enumerate(zip(documents, wanted)) if a != b), min(len(documents), len(wanted)))
        print(f"{len(documents)} documents, and {len(wanted)} were written; the first that differs is number {at}")
        sys.exit(1)


main(*sys.argv[1:])
