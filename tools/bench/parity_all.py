"""`tools/bench/parity all`: every other part in turn, and one table of all their figures.

A part whose modules, packages or programs are missing says so, and the next one follows.
"""
import subprocess
import sys
import time

MISSING = 77  # the exit status of a part that lacks something
# Parts, the shortest first, with their options; whose whole size takes an hour is short, and whole with --whole.
PARTS = [("smollm2", []), ("minilm", []), ("bpe", []), ("models", []), ("gguf", []), ("import", []), ("tests", []),
         ("tokenizers", ["--megabytes", "1"])]
WHOLE = {"tokenizers": []}


def rows(said):
    """The rows of the Markdown tables in a text: the first cell, and the others behind their headings."""
    headings, before = None, None
    for line in said.splitlines():
        line = line.strip()
        if not line.startswith("|"):
            headings = before = None
            continue
        cells = [c.strip() for c in line[1:].removesuffix("|").split("|")]
        if headings:
            several = len(headings) > 2
            yield cells[0], "; ".join(f"{h}: {c}" if several else c for h, c in zip(headings[1:], cells[1:]) if c)
        elif before and set(line) <= set("|-: "):
            headings = before
        before = cells


def outcome(code):
    if code == 0:
        return "within its bounds"
    return {1: "a bound is missed, or it failed", MISSING: "skipped"}.get(code, f"ended with {code}")


def notes(said):
    """What a part says beside its tables, without its heading, which names command and machine."""
    lines = [line.strip() for line in said.splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith(("|", "`")))


def run_all(program, whole, parts=PARTS):
    """Prints the table as parts end; returns the exit status: 1 if a part did not end well, 77 if all were skipped.
    `program`: words of the command to which a part and its options are added."""
    codes = []
    print("| part | what | figures |\n|---|---|---|", flush=True)
    for part, short in parts:
        words = [part, *(WHOLE.get(part, short) if whole else short)]
        print(f"parity: {' '.join(words)}", file=sys.stderr, flush=True)
        began = time.monotonic()
        done = subprocess.run([*program, *words], stdout=subprocess.PIPE, text=True, check=False)
        codes.append(done.returncode)
        told = [outcome(done.returncode), f"{time.monotonic() - began:.0f} s", notes(done.stdout)]
        print(f"| {part} | `tools/bench/parity {' '.join(words)}` | {'; '.join(t for t in told if t)} |")
        for what, figures in rows(done.stdout):
            print(f"| {part} | {what} | {figures} |", flush=True)
    skipped = codes.count(MISSING)
    print(f"\n{codes.count(0)} parts within their bounds, {len(codes) - codes.count(0) - skipped} not, {skipped} skipped", flush=True)
    if any(code not in (0, MISSING) for code in codes):
        return 1
    return MISSING if skipped == len(codes) else 0
