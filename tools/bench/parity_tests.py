"""`tools/bench/parity tests`: the ordinary tests that compare models with other programs, as one table.

Their bounds are those that the tests name; what they measured they print as lines `measured WHAT: NUMBER`. A test is skipped where its oracle is missing, and for encoders if it needs a
cache.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from parity_models import chosen

# What is compared; with what; the program; its tests; the bound.
ROWS = [
    ("losses, every gradient, logits of decode and prefill: random models of odd sizes, fp32 plans on the CPU",
     "goldens of transformers 5.24", "test_e2e", "Of/Families.Losses*:Of/Families.Logits*", "relative L2 1e-5"),
    ("the same in the float64 interpreter", "the same", "test_e2e", "Of/Families.TheInterpreter*", "losses 1e-6, gradients 3e-6"),
    ("losses, gradients and logits in bf16", "the same", "test_e2e", "Of/FamiliesInBf16.*",
     "3 times the error of as many roundings"),
    ("logits and loss of exports of these models, loaded by from_pretrained", "transformers 5 and 4", "test_e2e",
     "Of/Families.Transformers*", "1e-5"),
    ("logits of folders that transformers 5.24 and 4.57.6 wrote", "transformers", "test_e2e", "*Hf*.LogitsAre*", "relative L2 1e-5"),
    ("loss of our checkpoint, loaded by from_pretrained: GPT-2, Llama, BLOOM, GPT-NeoX, from bf16 too", "transformers 5 and 4",
     "test_e2e", "ExportTest.Transformers*", "1e-5"),
    ("losses of GGUF files of gpt2, llama, qwen2, qwen3, bloom; 200 greedy tokens", "llama.cpp", "test_e2e", "Gguf.LlamaCpp*",
     "1e-3; equal up to ties"),
    ("11 block formats of GGUF, read; 4, written", "goldens of gguf", "test_unit_frontends", "Gguf.BlocksAre*", "bit for bit"),
    ("sums of all values' bits of SmolLM2-135M in Q4_1", "gguf", "test_e2e", "Gguf.SmolLM2*", "equal"),
]


def measured(said):
    """What tests print of their measurements, least and most."""
    found = {}
    for what, number in re.findall(r"^measured ([\w ]+): (\S+)$", said, flags=re.M):
        found.setdefault(what, []).append(float(number))
    return "; ".join(f"{what} {min(v):.2g}" + (f" to {max(v):.2g}" if min(v) != max(v) else "") for what, v in found.items())


def outcome(program, tests):
    """Numbers of cases that passed, were skipped and failed, and what they measured."""
    environment = dict(os.environ, PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        done = subprocess.run([program, f"--gtest_filter={tests}", f"--gtest_output=json:{report}"], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not os.path.exists(report):
            raise RuntimeError(f"{program} wrote no report: {done.stdout.strip()[-200:]}")
        with open(report, encoding="utf-8") as f:
            cases = [c for suite in json.load(f)["testsuites"] for c in suite["testsuite"]]
    failed = [c for c in cases if "failures" in c]
    for case in failed:
        print(f"failed: {case['classname']}.{case['name']}: {case['failures'][0]['failure'][:200]}", file=sys.stderr)
    skipped = sum(c["result"] == "SKIPPED" for c in cases)
    return len(cases) - skipped - len(failed), skipped, len(failed), measured(done.stdout)


def run_tests(options, bin):
    """Prints the table; returns whether a test failed or a row had none that passed."""
    names = chosen(options, [row[0] for row in ROWS])
    print("| what | with | test | bound | measured | passed, skipped, failed |\n|---|---|---|---|---|---|", flush=True)
    bad = False
    for what, oracle, program, tests, bound in ROWS:
        if what not in names:
            continue
        passed, skipped, failed, found = outcome(os.path.join(bin, program), tests)
        bad = bad or failed > 0 or passed == 0
        print(f"| {what} | {oracle} | `{program} --gtest_filter='{tests}'` | {bound} | {found} | {passed}, {skipped}, {failed} |", flush=True)
    return bad
