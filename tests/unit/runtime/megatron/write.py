#!/usr/bin/env python3
"""Data sets written by megatron-core, and the tokens that it finds in them.

  write.py FOLDER

Of each type of whole numbers: TYPE.bin and TYPE.idx; merged.bin and merged.idx of two others. NAME.tokens.bin has the
same tokens, as megatron-core reads them, as a file of llm.c's with 32 bits a token. Exit status: 77 megatron-core is
missing.
"""
import sys
import warnings

warnings.filterwarnings("ignore")
try:
    import numpy
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SEQUENCES = 200


def expect(prefix):
    found = IndexedDataset(prefix)
    tokens = numpy.concatenate([found[i] for i in range(len(found))]).astype(numpy.uint32)
    header = numpy.zeros(256, numpy.int32)
    header[:3] = 20240801, 7, len(tokens)
    with open(prefix + ".tokens.bin", "wb") as out:
        out.write(header.tobytes())
        out.write(tokens.tobytes())


def main(folder):
    random = numpy.random.default_rng(7)
    types = [numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint16]
    for dtype in types:
        prefix = f"{folder}/{dtype.__name__}"
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
        most = min(numpy.iinfo(dtype).max, 99_999)
        for i in range(SEQUENCES):
            tokens = random.integers(0, most, size=int(random.integers(0, 40)), endpoint=True)
            builder.add_item(torch.tensor(tokens, dtype=torch.int64))
            if i % 3 == 2 or i == SEQUENCES - 1:
                builder.end_document()
        builder.finalize(prefix + ".idx")
        expect(prefix)
    merged = IndexedDatasetBuilder(f"{folder}/merged.bin", dtype=numpy.uint16)
    for part in (f"{folder}/uint16", f"{folder}/uint16"):
        merged.add_index(part)
    merged.finalize(f"{folder}/merged.idx")
    expect(f"{folder}/merged")


main(sys.argv[1])
