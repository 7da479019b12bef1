#!/usr/bin/env python3
"""Makes the files of this folder from text of our own, README.md and docs/*.md as they stand:

    merges-1000.txt  1000 merges that `gptc data prepare --tokenizer bpe:1257` learns, in the form of GPT-2's merges file
    ids.json         some texts, and the ids that the encoder below gives them with these merges

The encoder is written from GPT-2's rules alone and shares nothing with gptc: words by categories of Unicode, and of each
word again and again the pair with the lowest merge. Needs a built gptc (GPTC_BIN_DIR, build/release/bin).

    tests/unit/frontends/merges/make.py
"""
import glob
import json
import os
import subprocess
import tempfile
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(HERE + "/../../../..")
GPTC = os.environ.get("GPTC_BIN_DIR", ROOT + "/build/release/bin") + "/gptc"
TEXTS = [
    "", " ", "\n", "the model", " The plan's arena isn't larger than they'll need; we've 1812 of it!",
    "A naïve “compiler”:\n\n  中文 and   more!!\t ", "I'LL see, I'll see: 'sure, '' 're", "x = f(a_b)[12] // 3.5e-4;\r\n\treturn x\n\n\n",
    "½Ⅷ٣ ①② e\u0301 Ελλάδα Ночь река", "😀👨‍👩‍👧 a\u00a0b\u3000c\u200bd\u2028e\u0085f", "tokenizertokenizer" * 5, "\x00\x07\x1b   ",
]


def learned():
    with tempfile.TemporaryDirectory() as out:
        files = [ROOT + "/README.md"] + sorted(glob.glob(ROOT + "/docs/*.md"))
        subprocess.run([GPTC, "data", "prepare", *files, "--tokenizer", "bpe:1257", "--val-fraction", "0", "--out", out], check=True)
        with open(out + "/tokenizer.json", encoding="utf-8") as f:
            return json.load(f)["model"]["merges"]


def characters_of_bytes():
    """GPT-2's printable character of each byte, in the order of its tokens: printable bytes first, then the others."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return {**{b: chr(b) for b in kept}, **{b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in kept)}}


def kind(c):
    category = unicodedata.category(c)
    if category[0] == "Z" or c in "\t\n\v\f\r\x85":
        return "space"
    return {"L": "letter", "N": "number"}.get(category[0], "other")


def words(text):
    """'s|'t|'re|'ve|'m|'ll|'d| ?letters| ?numbers| ?others|spaces before a space or the end|spaces"""
    at = 0
    while at < len(text):
        end = next((at + len(e) for e in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(e, at)), 0)
        if not end:
            first = at + (text[at] == " " and at + 1 < len(text) and kind(text[at + 1]) != "space")
            end = first + 1
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            if kind(text[first]) == "space" and end < len(text) and end - at > 1:
                end -= 1
        yield text[at:end]
        at = end


def encode(text, ranks, ids, characters):
    out = []
    for word in words(text):
        pieces = [characters[b] for b in word.encode()]
        while True:
            rank, i = min(((ranks[p], i) for i, p in enumerate(zip(pieces, pieces[1:])) if p in ranks), default=(None, None))
            if rank is None:
                break
            pieces[i:i + 2] = [pieces[i] + pieces[i + 1]]
        out += [ids[p] for p in pieces]
    return out


def main():
    merges = [m.split(" ") for m in learned()]
    assert len(merges) == 1000, len(merges)
    characters = characters_of_bytes()
    ids = {p: i for i, p in enumerate([*characters.values(), *(a + b for a, b in merges)])}
    ranks = {(a, b): i for i, (a, b) in enumerate(merges)}
    with open(HERE + "/merges-1000.txt", "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    with open(HERE + "/ids.json", "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps([t, encode(t, ranks, ids, characters)], separators=(",", ":")) for t in TEXTS) + "\n]\n")


if __name__ == "__main__":
    main()
