"""What tools/bench/peers keeps, a JSON file that grows as it measures, and the page that it makes of it: pure, but
for the file."""

import json
import os
import statistics


class Results:
    """A dictionary that is in its file after every change, so that a stopped run goes on where it was."""

    def __init__(self, path):
        self.path, self.all = path, {"about": {}, "trials": {}, "rows": {}, "jobs": {}, "matmul": {}}
        if path and os.path.exists(path):
            with open(path) as f:
                self.all.update(json.load(f))

    def __getitem__(self, key):
        return self.all[key]

    def save(self):
        if self.path:
            with open(self.path + ".new", "w") as f:
                json.dump(self.all, f, indent=1)
            os.replace(self.path + ".new", self.path)


def number(x):
    """Three digits, more where the number has them before its point."""
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def spread(values):
    """Median, and in brackets the smallest and largest."""
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def ratios(rounds, title):
    """How many times as long as ours theirs took, round by round. Rounds in which either is missing do not count."""
    return [r[title] / r["gptc"] for r in rounds if title in r and "gptc" in r]


def titles(rounds):
    return list(dict.fromkeys(t for r in rounds for t in r if t not in ("gptc", "peak")))


def fastest(rounds, of):
    """The contender among `of` with the smallest median, or None."""
    medians = {t: statistics.median([r[t] for r in rounds if t in r]) for t in of if any(t in r for r in rounds)}
    return min(medians, key=medians.get) if medians else None


def peers_of(rounds):
    """{peer: its contenders}, a title being "PyTorch 2.1 compiled" or "PyTorch 2.1 eager"."""
    peers = {}
    for t in titles(rounds):
        peers.setdefault(t.rsplit(" ", 1)[0], []).append(t)
    return peers


def table(header, rows):
    return (
        "\n".join(
            ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] + ["| " + " | ".join(r) + " |" for r in rows]
        )
        + "\n"
    )


def time_table(rows, unit):
    """Of {row: {"rounds": [...]}}: ours, each peer's contenders, and the ratio to each peer's faster one."""
    columns = list(dict.fromkeys(t for row in rows.values() for t in titles(row["rounds"])))
    peers = list(dict.fromkeys(p for row in rows.values() for p in peers_of(row["rounds"])))
    lines = []
    for name, row in rows.items():
        rounds = row["rounds"]
        cells = [name, spread([r["gptc"] for r in rounds if "gptc" in r])]
        cells += [
            number(statistics.median([r[c] for r in rounds if c in r])) if any(c in r for r in rounds) else ""
            for c in columns
        ]
        for peer in peers:
            best = fastest(rounds, peers_of(rounds).get(peer, []))
            cells.append(spread(ratios(rounds, best)) if best else "")
        cells.append(next((r["peak"] for r in reversed(rounds) if r.get("peak")), ""))
        lines.append(cells)
    return table(
        [f"row, {unit}", "gptc", *columns, *(f"{p} / gptc" for p in peers), "gptc's share of the peak then"], lines
    )


def settings_table(rows):
    """Also of rows that have none but settings: --settings takes them over."""
    seen = [[name, title, how] for name, row in rows.items() for title, how in row.get("settings", {}).items()]
    return table(["row", "of", "settings: for peers the best"], seen)


FORMS = {"AB": "forward, AB", "AB'": "AB'", "A'B": "gradients of weights, A'B", None: "all"}


def weighted(products, ms, form=None):
    """FLOPs and seconds of all products of a form as often as a step has them, `ms` by product."""
    chosen = [
        (2.0 * p["m"] * p["n"] * p["k"], p["calls"], t) for p, t in zip(products, ms) if form in (None, p["form"])
    ]
    return sum(f * c for f, c, _ in chosen), sum(1e-3 * t * c for _, c, t in chosen)


def medians(rounds, side):
    """By product, over rounds."""
    return [statistics.median(times) for times in zip(*(r[side] for r in rounds if side in r))]


def matmul_table(matmul):
    """GFLOP/s weighted by FLOPs as a step has them, of {"fp32": {"products": [..], "rounds": [{side: [ms..], "peak":
    [GFLOP/s]}]}}."""
    columns = list(dict.fromkeys(t for of in matmul.values() for t in titles(of["rounds"])))
    lines = []
    for compute, of in matmul.items():
        products, rounds = of["products"], of["rounds"]
        ours, peak = medians(rounds, "gptc"), medians(rounds, "peak")
        for form, name in FORMS.items():
            flops, seconds = weighted(products, ours, form)
            if not seconds:
                continue
            floor = weighted(products, [2e-6 * p["m"] * p["n"] * p["k"] / x for p, x in zip(products, peak)], form)[1]
            theirs = {
                c: weighted(products, medians(rounds, c), form)[1] for c in columns if any(c in r for r in rounds)
            }
            cells = [f"{name}, {compute}", f"{flops / seconds * 1e-9:.0f}", f"{100 * floor / seconds:.0f}%"]
            cells += [f"{flops / theirs[c] * 1e-9:.0f}" if c in theirs else "" for c in columns]
            lines.append([*cells, f"{min(theirs.values()) / seconds:.2f}" if theirs else ""])
    return table(["products of GPT-2, GFLOP/s", "gptc", "of peak", *columns, "best / gptc"], lines)


def loss_lines(rows):
    """Of trained models: that all learned the same."""
    return [
        f"Validation losses, {name}: " + ", ".join(f"{t} {loss:.3f}" for t, loss in row["val_loss"].items()) + ".\n"
        for name, row in rows.items()
        if row.get("val_loss")
    ]


def page(all_):
    """The section of docs/lab/peers.md, from what was measured."""
    about = all_["about"]
    days = " to ".join(dict.fromkeys(about[k] for k in ("from", "to") if k in about))
    out = [f"Measured by `tools/bench/peers`{days and ', ' + days}: {about.get('machine', '')}.\n"]
    for peer, what in about.get("peers", {}).items():
        out.append(f"- {peer}: {what}")
    out.append("")
    for rows, unit in ((all_["rows"], "ms per step or token"), (all_["jobs"], "s from nothing to a trained model")):
        rows = {name: row for name, row in rows.items() if row["rounds"]}
        if rows:
            out += [time_table(rows, unit), *loss_lines(rows), ""]
    matmul = {compute: of for compute, of in all_["matmul"].items() if of.get("rounds")}
    if matmul:
        out += [matmul_table(matmul), ""]
    if all_["rows"]:
        out += [settings_table({**all_["rows"], **all_["jobs"]})]
    return "\n".join(out).rstrip() + "\n"


BEGIN, END = "<!-- by tools/bench/peers -->\n", "<!-- end -->\n"


def into(document, section):
    """The document with the section between its marks, at its end where it has none."""
    if BEGIN in document and END in document:
        head, rest = document.split(BEGIN, 1)
        return head + BEGIN + section + END + rest.split(END, 1)[1]
    return document + ("\n" if document else "") + BEGIN + section + END
