#!/usr/bin/env python3
"""The pure parts of tools/bench/peers, the processes that it talks to as far as they are there, and that PyTorch's
model is ours.

peers_test.py BIN [PART]     where BIN holds gptc and gptrun. PART: pure, onednn or pytorch; else all.

Exit status 77 if a case was skipped, with the reasons in the last line.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "tools", "bench")
BIN = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else ""
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import onednn_matmul
import peer_report as report
import peer_settings as settings

loader = importlib.machinery.SourceFileLoader("peers", os.path.join(BENCH, "peers"))
peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
loader.exec_module(peers)

DIMS = [
    ("blas", ["bundled", "/x/a.so", "/x/b.so"]),
    ("binding", ["none", "close"]),
    ("threads", [2, 1]),
    ("compile", ["no", "default", "most"]),
]
NEW = {"onednn_linear": True, "compile": True}
OLD = {"onednn_linear": False, "compile": False}


def search(dims, time_of):
    """Runs the search to its end. Returns the contenders and the texts of all trials in their order."""
    trials = {}
    while True:
        best, then = settings.contenders(dims, trials)
        if then is None:
            return best, list(trials)
        key = settings.text(then, dims)
        assert key not in trials, key
        trials[key] = time_of(then)


class Settings(unittest.TestCase):
    def test_each_dimension_starts_from_the_best_so_far(self):
        def time_of(s):
            return (
                100
                - 30 * (s["blas"] == "/x/b.so")
                - 10 * (s["binding"] == "close")
                + 50 * (s["threads"] == 1)
                - 5 * (s["compile"] == "most")
            )

        best, tried = search(DIMS, time_of)
        self.assertEqual(best["eager"], {"blas": "/x/b.so", "binding": "close", "threads": 2, "compile": "no"})
        self.assertEqual(best["compiled"], {**best["eager"], "compile": "most"})
        self.assertEqual(
            tried,
            [
                "defaults",
                "blas = a.so",
                "blas = b.so",
                "blas = b.so, binding = close",
                "blas = b.so, binding = close, threads = 1",
                "blas = b.so, binding = close, compile = default",
                "blas = b.so, binding = close, compile = most",
            ],
        )

    def test_noise_changes_nothing(self):
        best, _ = search(DIMS, lambda s: 100 - (s["binding"] == "close"))
        self.assertEqual(best["eager"]["binding"], "none")

    def test_the_best_of_several_values_wins_not_the_first(self):
        best, _ = search(DIMS, lambda s: {"bundled": 100, "/x/a.so": 90, "/x/b.so": 80}[s["blas"]])
        self.assertEqual(best["eager"]["blas"], "/x/b.so")
        best, _ = search(DIMS, lambda s: {"bundled": 100, "/x/a.so": 80, "/x/b.so": 90}[s["blas"]])
        self.assertEqual(best["eager"]["blas"], "/x/a.so")

    def test_what_fails_is_left_out(self):
        best, tried = search(
            DIMS, lambda s: "no such library" if s["blas"] == "/x/a.so" or s["compile"] != "no" else 100
        )
        self.assertEqual(best, {"eager": {"blas": "bundled", "binding": "none", "threads": 2, "compile": "no"}})
        self.assertIn("compile = most", tried)

    def test_a_default_that_fails_is_replaced_by_what_works(self):
        best, _ = search(DIMS, lambda s: 100 if s["binding"] == "close" else "crashed")
        self.assertEqual(best["eager"]["binding"], "close")
        best, _ = search(DIMS, lambda s: "crashed")
        self.assertEqual(best, {})

    def test_dimensions_are_those_that_the_peer_has(self):
        names = lambda *a: [d[0] for d in settings.dimensions(*a)]
        self.assertIn("linear", names(NEW, "fp32", False, 2))
        self.assertNotIn("linear", names(NEW, "bf16", False, 2))
        self.assertNotIn("linear", names(OLD, "fp32", False, 2))
        self.assertIn("weights", names(OLD, "bf16", False, 2))
        self.assertNotIn("adamw", names(NEW, "bf16", True, 2))
        self.assertNotIn("threads", names(NEW, "bf16", True, 1))
        self.assertEqual(dict(settings.dimensions(OLD, "fp32", False, 2))["compile"], ["no"])
        self.assertEqual(
            dict(settings.dimensions(NEW, "fp32", False, 2, ["/x/blas.so"]))["blas"], ["bundled", "/x/blas.so"]
        )

    def test_what_is_said_of_a_setting_is_read_again(self):
        dims = settings.dimensions(NEW, "fp32", False, 2, ["/x/blas.so"], ["/x/malloc.so.2"])
        for key in search(dims, lambda s: 100 - sum(s[k] != v for k, v in settings.first(dims).items()))[1]:
            self.assertEqual(settings.text(settings.parse(key, dims), dims), key)
        said = "blas = blas.so, malloc = kept, huge pages, isa = ATEN_CPU_CAPABILITY=avx512, threads = 1"
        there = settings.parse(said, dims)
        self.assertEqual((there["blas"], there["malloc"], there["threads"]), ("/x/blas.so", "kept, huge pages", 1))
        for unknown in ("", "blas = another.so", "malloc = kept, colour = red", "rubbish"):
            self.assertIsNone(settings.parse(unknown, dims), unknown)

    def test_known_settings_are_those_of_the_first_row_that_has_them_all(self):
        rows = [
            {"P eager": "binding = close", "P compiled": "blas = gone.so, compile = most"},
            {"P eager": "threads = 1", "P compiled": "threads = 1, compile = most", "gptc": "x"},
            {"P eager": "defaults", "P compiled": "compile = most"},
        ]
        best = settings.known("P", DIMS, rows)
        self.assertEqual((best["eager"]["threads"], best["compiled"]["compile"]), (1, "most"))
        self.assertEqual(settings.known("Q", DIMS, rows), {})
        self.assertEqual(settings.known("P", DIMS, []), {})
        eager = settings.known("P", [*DIMS[:-1], ("compile", ["no"])], rows)
        self.assertEqual((list(eager), eager["eager"]["binding"]), (["eager"], "close"))

    def test_the_environment_says_the_setting_and_nothing_else_of_the_user(self):
        base = {
            "PATH": "/bin",
            "OPENBLAS_CORETYPE": "Haswell",
            "OMP_NUM_THREADS": "7",
            "KMP_AFFINITY": "x",
            "MALLOC_ARENA_MAX": "9",
        }
        env = settings.environment({}, base, 2)
        self.assertEqual(env, {"PATH": "/bin", "OMP_NUM_THREADS": "2"})
        env = settings.environment(
            {
                "blas": "/x/b.so",
                "openmp": "/x/omp.so",
                "malloc": "/x/libjemalloc.so.2",
                "binding": "close",
                "isa": "MKL_ENABLE_INSTRUCTIONS=AVX512",
            },
            base,
            2,
        )
        self.assertEqual(env["LD_PRELOAD"], "/x/omp.so:/x/b.so:/x/libjemalloc.so.2")
        self.assertEqual(env["OMP_PROC_BIND"], "close")
        self.assertEqual(env["MKL_ENABLE_INSTRUCTIONS"], "AVX512")
        self.assertIn("MALLOC_CONF", env)
        self.assertEqual(settings.environment({"malloc": "kept"}, base, 2)["MALLOC_ARENA_MAX"], "1")

    def test_a_process_is_told_only_what_is_its_own(self):
        self.assertEqual(
            settings.within({"blas": "b", "malloc": "kept", "threads": 1, "compile": "no"}),
            {"threads": 1, "compile": "no"},
        )

    def test_libraries_that_ldconfig_lists(self):
        listing = (
            "4 libs found\n"
            "\tlibblis.so.4 (libc6,x86-64) => /usr/lib/libblis.so.4\n"
            "\tlibopenblas.so.0 (libc6,x86-64) => /opt/libopenblas.so.0\n"
            "\tlibopenblas.so.0 (libc6,x86-64) => /usr/lib/libopenblas.so.0\n"
            "\tlibmkl_rt.so (libc6) => /usr/lib32/libmkl_rt.so\n"
        )
        self.assertEqual(settings.listed(settings.BLAS, listing), ["/opt/libopenblas.so.0", "/usr/lib/libblis.so.4"])


ROUNDS = [
    {"gptc": 10.0, "PyTorch 2.1 eager": 20.0, "PyTorch 2.1 compiled": 18.0, "peak": "80% of 500 GFLOP/s"},
    {"gptc": 20.0, "PyTorch 2.1 eager": 30.0, "PyTorch 2.1 compiled": 36.0, "peak": "81% of 500 GFLOP/s"},
    {"gptc": 10.0, "PyTorch 2.1 eager": 25.0, "peak": "82% of 500 GFLOP/s"},
]


class Report(unittest.TestCase):
    def test_ratios_are_within_rounds(self):
        self.assertEqual(report.ratios(ROUNDS, "PyTorch 2.1 eager"), [2.0, 1.5, 2.5])
        self.assertEqual(report.ratios(ROUNDS, "PyTorch 2.1 compiled"), [1.8, 1.8])
        self.assertEqual(report.spread([2.0, 1.5, 2.5]), "2.00 (1.50 to 2.50)")

    def test_numbers_have_three_digits(self):
        self.assertEqual([report.number(x) for x in (1.234, 12.34, 123.4, 1234.0)], ["1.23", "12.3", "123", "1234"])

    def test_the_fastest_is_the_one_of_the_smallest_median(self):
        self.assertEqual(report.fastest(ROUNDS, report.titles(ROUNDS)), "PyTorch 2.1 eager")
        self.assertEqual(report.fastest(ROUNDS[:1], report.titles(ROUNDS)), "PyTorch 2.1 compiled")
        self.assertIsNone(report.fastest(ROUNDS, ["another"]))

    def test_a_table_of_times(self):
        lines = report.time_table(
            {"char, fp32": {"rounds": ROUNDS}, "GPT, fp32": {"rounds": [{"gptc": 7.0, "PyTorch 1.0 eager": 14.0}]}},
            "ms",
        ).splitlines()
        self.assertEqual(
            lines[0],
            "| row, ms | gptc | PyTorch 2.1 eager | PyTorch 2.1 compiled | PyTorch 1.0 eager | PyTorch 2.1 / gptc |"
            " PyTorch 1.0 / gptc | gptc's share of the peak then |",
        )
        self.assertEqual(
            lines[2],
            "| char, fp32 | 10.0 (10.0 to 20.0) | 25.0 | 27.0 |  | 2.00 (1.50 to 2.50) |  | 82% of 500 GFLOP/s |",
        )
        self.assertEqual(lines[3], "| GPT, fp32 | 7.00 (7.00 to 7.00) |  |  | 14.0 |  | 2.00 (2.00 to 2.00) |  |")

    def test_products_weighted_by_flops_and_calls(self):
        products = [
            {"m": 1000, "n": 1000, "k": 1000, "form": "AB", "calls": 2},
            {"m": 1000, "n": 1000, "k": 500, "form": "A'B", "calls": 1},
        ]
        of = {
            "products": products,
            "rounds": [{"gptc": [4.0, 4.0], "peak": [1000.0, 500.0], "oneDNN 3.0 packed": [5.0, 5.0]}],
        }
        lines = report.matmul_table({"fp32": of}).splitlines()
        self.assertEqual(lines[2], "| forward, AB, fp32 | 500 | 50% | 400 | 1.25 |")
        self.assertEqual(lines[3], "| gradients of weights, A'B, fp32 | 250 | 50% | 200 | 1.25 |")
        self.assertEqual(lines[4], "| all, fp32 | 417 | 50% | 333 | 1.25 |")

    def test_the_section_replaces_itself_and_nothing_else(self):
        once = report.into("# Page\n\n" + report.BEGIN + "old\n" + report.END + "\nAfter\n", "new\n")
        self.assertEqual(once, "# Page\n\n" + report.BEGIN + "new\n" + report.END + "\nAfter\n")
        self.assertEqual(report.into(once, "new\n"), once)
        self.assertEqual(report.into("", "new\n"), report.BEGIN + "new\n" + report.END)

    def test_a_page_of_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            results = report.Results(folder + "/all.json")
            results["about"].update(
                {
                    "from": "2026-01-02",
                    "to": "2026-01-03",
                    "machine": "a CPU, 2 threads",
                    "peers": {"PyTorch 2.1": "MKL"},
                }
            )
            results["rows"]["char, fp32"] = {"rounds": ROUNDS, "settings": {"PyTorch 2.1 eager": "malloc = kept"}}
            results["rows"]["not yet, fp32"] = {"rounds": [], "settings": {"PyTorch 2.1 eager": "defaults"}}
            losses = {"gptc": 1.5, "PyTorch 2.1": 2}
            results["jobs"]["job, fp32"] = {"rounds": ROUNDS, "settings": {}, "val_loss": losses}
            results.save()
            page = report.page(report.Results(folder + "/all.json").all)
        self.assertIn("- PyTorch 2.1: MKL\n", page)
        self.assertIn("| char, fp32 | PyTorch 2.1 eager | malloc = kept |", page)
        self.assertIn("2026-01-02 to 2026-01-03: a CPU", page)
        self.assertIn("Validation losses, job, fp32: gptc 1.500, PyTorch 2.1 2.000.\n", page)
        self.assertIn("| not yet, fp32 | PyTorch 2.1 eager | defaults |", page)
        self.assertEqual(page.count("not yet"), 1)

    def test_the_page_is_that_of_the_result_file_beside_it(self):
        with open(os.path.join(ROOT, "docs", "lab", "peers.md")) as f:
            page = f.read()
        results = report.Results(os.path.join(ROOT, "docs", "lab", "peers.json"))
        self.assertTrue(results["rows"])
        self.assertEqual(report.into(page, report.page(results.all)), page)


def bench_of(folder, **more):
    given = dict(json=f"{folder}/all.json", settings=[], blas=[], malloc=[], onednn=[], minutes=0)
    return peers.Bench(argparse.Namespace(**{**given, **more}))


class Fake:
    """Of peers.Theirs: settings with one of these allocators fail."""

    failing = ()

    def __init__(self, python, setting, model, compute):
        if setting["malloc"] in self.failing:
            raise peers.Failed("crashed")

    def steps(self, n, warm=0, limit=0):
        return [5.0] * n

    def close(self):
        pass


class Known(unittest.TestCase):
    """A row of a peer with settings that an earlier result file has."""

    def row(self, earlier, failing=()):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            name, model, group, n = peers.ROWS[0]
            old = report.Results(f"{folder}/old.json")
            old["rows"][f"{name}, fp32"] = {"rounds": [], "settings": {"P eager": earlier}}
            old.save()
            bench, was = bench_of(folder, settings=[old.path], rounds=2, tune=0), (peers.Theirs, peers.Ours)
            bench.blas, bench.allocators, bench.openmp, bench.pythons = [], [], [], [("P", "python", OLD)]
            ours = argparse.Namespace(schedules="", steps=lambda n: (4.0, ""))
            peers.Theirs, peers.Ours, Fake.failing = Fake, lambda *args: ours, failing
            try:
                bench.row(name, model, group, n, "fp32")
            finally:
                peers.Theirs, peers.Ours = was
            results = report.Results(f"{folder}/all.json")
        row = results["rows"][f"{name}, fp32"]
        self.assertEqual([r["P eager"] for r in row["rounds"]], [5.0, 5.0])
        return row["settings"]["P eager"], list(results["trials"]["P | char | fp32"])

    def test_known_settings_are_not_searched(self):
        self.assertEqual(self.row("malloc = kept, huge pages"), ("malloc = kept, huge pages", []))

    def test_known_settings_that_fail_or_are_not_there_are_searched(self):
        best, trials = self.row("malloc = kept", failing=["kept"])
        self.assertEqual((best, trials[:2]), ("defaults", ["malloc = kept", "defaults"]))
        self.assertGreater(len(trials), 5)
        self.assertGreater(len(self.row("blas = gone.so")[1]), 5)

    def test_a_result_file_of_another_machine_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            bench = bench_of(folder, python=["/no/such/python"])
            bench.look()
            bench.look()
            bench.results["about"]["machine"] = "another"
            self.assertRaisesRegex(peers.Failed, "another machine", bench.look)


class OneDnn(unittest.TestCase):
    def setUp(self):
        self.libraries = settings.found(settings.ONEDNN)
        if not self.libraries:
            self.skipTest("no libdnnl")

    def test_onednn_multiplies(self):
        order = {"dtype": "f32", "products": [{"m": 65, "n": 33, "k": 17, "form": f} for f in ("AB", "AB'", "A'B")]}
        done = subprocess.run(
            [sys.executable, peers.ONEDNN, self.libraries[0], "0"], input=json.dumps(order), capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        self.assertEqual((len(got["packed"]), len(got["plain"])), (3, 3))

    def test_products_beside_onednn(self):
        ours = {"ms": {"median": 0.5}, "gflops": 1.0, "of_peak_beside": 0.25, "calls": 2}
        said = {"products": [{"m": 64, "n": 32, "k": 16, "form": f, **ours} for f in ("AB", "A'B")]}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as shown:
            bench, run = bench_of(folder, onednn=["/no/such.so"], matmul_rounds=2), peers.run
            peers.run = lambda command, env=None: json.dumps(said) if "matmul" in command else ""
            try:
                bench.matmul("fp32")
            finally:
                peers.run = run
            of = report.Results(f"{folder}/all.json")["matmul"]["fp32"]
        self.assertEqual([p["form"] for p in of["products"]], ["AB", "A'B"])
        self.assertEqual(
            (len(of["rounds"]), of["rounds"][1]["gptc"], of["rounds"][1]["peak"]), (2, [0.5, 0.5], [4.0, 4.0])
        )
        self.assertEqual(len(report.titles(of["rounds"])), 2 * len(self.libraries))
        self.assertIn("/no/such.so", shown.getvalue())


class Unusable(unittest.TestCase):
    def test_onednn_notices_a_wrong_sum(self):
        with self.assertRaises(RuntimeError):
            onednn_matmul.OneDnn.check(b"\0\0\0\0", 5, onednn_matmul.F32)

    def test_a_python_that_is_not_there(self):
        with self.assertRaises((OSError, peers.Failed)):
            peers.Theirs("/no/such/python", {}, {}, "fp32")


class PyTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folders = os.environ["PATH"].split(":")  # all of them: a wrapper may have put its own Python in front
        pythons = [p for p in [sys.executable, *(os.path.join(f, "python3") for f in folders)] if has_torch(p)]
        if not pythons:
            raise unittest.SkipTest("no Python with PyTorch and NumPy")
        if not BIN:
            raise unittest.SkipTest("no folder with gptc and gptrun was given")
        cls.python = pythons[0]

    def test_time_to_a_trained_model(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            with open(f"{folder}/text.txt", "w") as f:
                f.write("the quick brown fox jumps over the lazy dog\n" * 500)
            bench, was = bench_of(folder, job_rounds=1), (peers.JOB, peers.BIN)
            bench.contenders = lambda group, compute: {
                "PyTorch eager": (self.python, {"adamw": "foreach"}, "defaults", {}),
                "PyTorch compiled": (self.python, {"adamw": "no such"}, "never", {}),
            }
            peers.JOB, peers.BIN = {**peers.JOB, "steps": 60, "warmup": 10, "eval_every": 30, "eval_steps": 2}, BIN
            try:
                bench.job("fp32", f"{folder}/text.txt")
            finally:
                peers.JOB, peers.BIN = was
            row = report.Results(f"{folder}/all.json")["jobs"]["char, 60 steps with evaluations, fp32"]
        self.assertEqual([set(r) for r in row["rounds"]], [{"gptc", "PyTorch eager"}])
        # One text of one line, over and over: both know it by then, and neither did before.
        for of, loss in row["val_loss"].items():
            self.assertTrue(0 < loss < 2, f"{of}: {loss}")

    def test_pytorch_trains_our_model(self):
        script = os.path.join(ROOT, "tests", "peers", "same_model.py")
        env = settings.environment({}, os.environ, peers.CPUS)
        done = subprocess.run([self.python, script, BIN], capture_output=True, text=True, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_peer_answers_or_says_why_not(self):
        tiny = dict(layers=1, heads=1, width=8, vocab=11, block=4, batch=1, bias=False)
        peer = peers.Theirs(self.python, {"adamw": "foreach"}, tiny, "fp32")
        self.assertEqual(len(peer.steps(2, warm=1)), 2)
        peer.options = {**tiny, "adamw": "no such"}
        with self.assertRaises(peers.Failed):
            peer.steps(1)
        peer.options = {**tiny, "mode": "sample"}
        self.assertEqual(len(peer.steps(6)), 6)
        peer.close()


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch, numpy"], capture_output=True).returncode == 0
    except OSError:
        return False


PARTS = {"pure": (Settings, Report, Known, Unusable), "onednn": (OneDnn,), "pytorch": (PyTorch,)}


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1] not in PARTS):
        sys.exit(__doc__)
    every = [c for part in PARTS.values() for c in part]
    cases = [c for c in globals().values() if isinstance(c, type) and issubclass(c, unittest.TestCase)]
    assert set(cases) == set(every), "each class belongs to a part"
    classes = PARTS[sys.argv[1]] if len(sys.argv) == 2 else every
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    result = unittest.TextTestRunner().run(unittest.TestSuite(load(c) for c in classes))
    if not result.wasSuccessful():
        return 1
    if result.skipped:
        sys.stderr.flush()
        print("; ".join(sorted({reason for _, reason in result.skipped})))
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
