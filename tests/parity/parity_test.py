#!/usr/bin/env python3
"""What tools/bench/parity does without the programs that it compares with: its help, and `parity all`."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "tools", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import parity_all
import parity_tests

PART = """import sys
print("`tools/bench/parity`, a machine\\n")
if sys.argv[1] == "absent":
    print("parity: no package x")
    sys.exit(77)
if sys.argv[1] == "differs":
    print("| what | outcome |\\n|---|---|\\n| cosine | 0.5 |")
    sys.exit(1)
print("a 1.0\\n\\n| family | gptc | theirs |\\n|---|---|---|\\n| gpt2 | 4.87 | 4.88 |\\n| bad | failed: x | |\\n\\n2 families")
print("| second | s |\\n|---|---|\\n| " + " ".join(sys.argv[2:]) + " | 3 |")
"""


def help_of(*words):
    return subprocess.run([sys.executable, os.path.join(BENCH, "parity"), *words, "--help"], capture_output=True, text=True, check=False)


class All(unittest.TestCase):
    def ran(self, parts, whole=False):
        """Exit status and lines of `parity all` with such parts."""
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "part.py")
            with open(program, "w", encoding="utf-8") as f:
                f.write(PART)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                code = parity_all.run_all([sys.executable, program], whole, parts)
        return code, re.sub(r"\b\d+ s\b", "N s", said.getvalue()).splitlines()

    def test_one_table_has_the_rows_of_every_part(self):
        code, lines = self.ran([("models", ["--steps", "2"]), ("absent", [])])
        self.assertEqual(code, 0)
        self.assertEqual(lines, [
            "| part | what | figures |", "|---|---|---|",
            "| models | `tools/bench/parity models --steps 2` | within its bounds; N s; a 1.0; 2 families |",
            "| models | gpt2 | gptc: 4.87; theirs: 4.88 |",
            "| models | bad | gptc: failed: x |",
            "| models | --steps 2 | 3 |",
            "| absent | `tools/bench/parity absent` | skipped; N s; parity: no package x |",
            "", "1 parts within their bounds, 0 not, 1 skipped"])

    def test_a_part_that_differs_is_red_and_the_next_one_runs(self):
        code, lines = self.ran([("differs", []), ("models", [])])
        self.assertEqual(code, 1)
        self.assertIn("| differs | cosine | 0.5 |", lines)
        self.assertIn("| models | gpt2 | gptc: 4.87; theirs: 4.88 |", lines)
        self.assertEqual(lines[-1], "1 parts within their bounds, 1 not, 0 skipped")

    def test_nothing_there_is_no_success(self):
        self.assertEqual(self.ran([("absent", [])])[0], 77)

    def test_what_takes_an_hour_is_whole_on_demand(self):
        for whole, command in ((False, "tokenizers --megabytes 1"), (True, "tokenizers")):
            lines = self.ran([p for p in parity_all.PARTS if p[0] == "tokenizers"], whole)[1]
            self.assertTrue(lines[2].startswith(f"| tokenizers | `tools/bench/parity {command}` |"), lines)

    def test_it_has_every_part_and_their_options(self):
        said = help_of()
        self.assertEqual(said.returncode, 0, said.stderr)
        parts = re.findall(r"^    tools/bench/parity (\w+)", said.stdout, flags=re.M)
        self.assertEqual(sorted(parts), sorted([name for name, _ in parity_all.PARTS] + ["all"]))
        for name in parts:
            self.assertRegex(said.stdout, rf"(?m)^{name} {{2,}}\S")  # says what it does
        for name, options in [*parity_all.PARTS, *parity_all.WHOLE.items(), ("all", ["--whole"])]:
            known = help_of(name)
            self.assertEqual(known.returncode, 0, known.stderr)
            for option in options:
                self.assertTrue(not option.startswith("--") or option in known.stdout, (name, option))


class Tests(unittest.TestCase):
    def test_measurements_of_tests_are_summed_up(self):
        said = "[ RUN ] a\nmeasured losses: 2.6e-08\nmeasured of one answer: 1.6\nmeasured losses: 1e-09\nunmeasured losses: 7\n"
        self.assertEqual(parity_tests.measured(said), "losses 1e-09 to 2.6e-08; of one answer 1.6")
        self.assertEqual(parity_tests.measured("[ OK ] a\n"), "")

    def test_a_program_of_tests_is_counted_and_asked(self):
        program = """#!/usr/bin/env python3
import json, sys
file = next(w for w in sys.argv if w.startswith("--gtest_output=json:")).partition("json:")[2]
cases = [dict(classname="A", name=n, result=r) for n, r in (("a", "COMPLETED"), ("b", "SKIPPED"), ("c", "COMPLETED"))]
cases[2]["failures"] = [dict(failure="1 is not 2")]
json.dump(dict(testsuites=[dict(testsuite=cases)]), open(file, "w"))
print("measured logits: 3e-07")
"""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "test_a")
            with open(file, "w", encoding="utf-8") as f:
                f.write(program)
            os.chmod(file, 0o700)
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(parity_tests.outcome(file, "*"), (1, 1, 1, "logits 3e-07"))


if __name__ == "__main__":
    unittest.main()
