"""The documents: every path, link and heading that they name exists, and they stay within their lengths.

    tests/docs/docs_test.py          of this source tree
"""

import fnmatch
import os
import re
import unittest

from links import dead_links, links

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Words, as `wc -w` counts them. LIMIT: of all pages together, without the generated ones and without docs/lab. LIMITS: of pages
# with a limit of their own.
LIMIT = 20000
LIMITS = {"docs/performance.md": 1500}
GENERATED = {"docs/keys.md", "docs/ops.md", "docs/errors.md"}
FOLDERS = ("support", "ir", "passes", "codegen", "runtime", "frontends", "tools", "tests", "examples", "docs")
SOURCES = ("h", "cpp", "def", "cuh", "inc", "py", "sh", "toml", "gir", "md", "svg", "txt")
# What users bring or programs write.
NOT_OURS = {"model.toml", "mine.toml", "gpt2.toml", "char.toml", "smol.toml", "base.toml", "here.toml", "wrong.toml", "cluster.toml",
            "MODEL.toml", "CLUSTER.toml", "C.toml", "M.toml", "merges.txt", "tinyshakespeare.txt", "TINYSHAKESPEARE.txt",
            "GPT2-MERGES.txt", "book.txt", "mine.txt", "book1.txt", "book2.txt", "x.gir", "model.gir", "repro.gir", "small.gir",
            "76.gir", "joint.gir", "planned.gir", "cuda.h", "nccl.h", "cublasLt.h", "cudnn.h", "prepare.py",
            "roof.svg", "days.svg", "step.svg", "memory.svg", "train_gpt2.c"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def tree():
    """Every file of ours, from the root of the source on."""
    out = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if not f.startswith(".") and (folder != ROOT or f in FOLDERS)]
        out += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return out


def pages(lab=True):
    """Every Markdown file of ours in any folder, but no generated ones; with docs/lab or without."""
    found = [f for f in os.listdir(ROOT) if f.endswith(".md")] + [f for f in tree() if "/" in f and f.endswith(".md")]
    return sorted(p for p in found if p not in GENERATED and (lab or not p.startswith("docs/lab/")))


def paths(text):
    """What is written as a path of ours: in backticks or code, from a folder of the root on; or the name of a source."""
    named = set()
    for code in re.findall(r"^```.*?^```", text, flags=re.S | re.M) + re.findall(r"`([^`\n]+)`", text):
        for word in re.findall(r"[\w./*{},+\-]+", code):
            word = word.strip(".,").rstrip("/")
            if re.match(r"(%s)/[\w.*{]" % "|".join(FOLDERS), word):
                named.add(word)
            elif re.fullmatch(r"[\w\-]+(/[\w\-]+)*\.(%s)" % "|".join(SOURCES), word):
                named.add(word)
    return named


class Docs(unittest.TestCase):
    def test_paths_exist(self):
        files = tree()
        folders = {os.path.dirname(f) for f in files}
        folders |= {os.path.dirname(f) for f in folders}
        known = files + sorted(folders)
        wrong = []
        for page in pages():
            for path in sorted(paths(read(page))):
                if path in NOT_OURS:
                    continue
                # NAME stands for any, {a,b} for each.
                for one in expanded(re.sub(r"\bNAME\b", "*", path)):
                    if not any(fnmatch.fnmatch(f, one) or fnmatch.fnmatch(f, "*/" + one) for f in known):
                        wrong.append(f"{page}: {path}")
        self.assertEqual(wrong, [])

    def test_links_lead_somewhere(self):
        self.assertEqual(dead_links(ROOT, pages()), [])

    def test_pages_are_short(self):
        words = {page: len(read(page).split()) for page in pages(lab=False)}
        for page, limit in LIMITS.items():
            self.assertLessEqual(words[page], limit, page)
        self.assertLessEqual(sum(words.values()), LIMIT, words)

    def test_the_map_has_every_page(self):
        linked = {os.path.normpath(os.path.join("docs", link.partition("#")[0])) for link in links(read("docs/README.md"))}
        for page in pages(lab=False):
            if page not in ("docs/README.md", "CHANGELOG.md"):
                self.assertIn(page, linked)
        for page in GENERATED:
            if os.path.exists(os.path.join(ROOT, page)):
                self.assertIn(page, linked)

    def test_every_pass_of_the_pipeline_has_its_section(self):
        sections = {h for line in re.findall(r"^## (.*)$", read("docs/passes.md"), flags=re.M) for h in line.split(", ")}
        passes = set(re.findall(r'^GPTC_PASS\("([\w\-]+)"', read("passes/passes.def"), flags=re.M)) | {"select-recipes"}
        pipeline = set(re.findall(r'^GPTC_PIPELINE\("([\w\-]+)"', read("passes/passes.def"), flags=re.M))
        self.assertGreater(len(pipeline), 15)
        self.assertEqual(sorted(pipeline - sections), [])
        self.assertEqual(sorted(sections - passes), [])

    def test_filters_name_tests(self):
        """Each word of a --gtest_filter in a document is part of a test's name, or of its suite's."""
        names = ""
        for file in tree():
            if file.startswith("tests/") and file.endswith(".cpp"):
                names += "".join(re.findall(r"\b(?:TEST(?:_[FP])?|INSTANTIATE_TEST_SUITE_P)\([^)]*", read(file)))
        wrong = []
        for page in pages():
            for given in re.findall(r"--gtest_filter='?([\w*.:/]+)", read(page)):
                wrong += [f"{page}: {given}" for word in re.split(r"[*.:/]+", given) if word and word not in names]
        self.assertEqual(wrong, [])

    def test_every_key_of_config_json_has_its_place(self):
        families, reader = read("frontends/hf/families.cpp"), read("frontends/hf/read.cpp")
        only = "".join(re.findall(r"\.only = \{(.*?\})\},\n", families, flags=re.S) + re.findall(r"onlyInAll\(\) \{(.*?)\n\}", families, flags=re.S))
        keys = set(re.findall(r'sizes\("(\w+)"', families) + re.findall(r'[{]"(\w+)", \{"\w+"', families) + re.findall(r'"(\w+)",', only) +
                   re.findall(r'(?:has|at|equation)\("(\w+)"', reader))
        self.assertGreater(len(keys), 50)
        page = read("docs/lab/config-keys.md")
        self.assertEqual(sorted(k for k in keys if f"`{k}`" not in page), [])
        names = re.findall(r'\.name = "(\w+)"', families)
        self.assertEqual([n for n in names if not re.search(rf"^\| {n} \|", page, flags=re.M)], [])
        self.assertGreater(len(names), 12)

    def test_every_variable_of_users_is_in_the_map(self):
        variables = re.findall(r'\{"(GPTC_\w+)", true\}', read("support/environment.cpp"))
        self.assertGreater(len(variables), 5)
        self.assertEqual([v for v in variables if f"`{v}`" not in read("docs/README.md")], [])

    def test_sources_name_documents_that_exist(self):
        wrong = []
        for file in tree():
            if not re.search(r"\.(h|cpp|def|cuh|py|sh|toml|txt|md)$|^tools/[\w\-/]+$|^tests/[\w\-]+/run$", file):
                continue
            with open(os.path.join(ROOT, file), encoding="utf-8", errors="replace") as f:
                for named in re.findall(r"\bdocs/[\w/\-]+\.(?:md|svg|json)\b", f.read()):
                    if named not in GENERATED and not os.path.exists(os.path.join(ROOT, named)):
                        wrong.append(f"{file}: {named}")
        self.assertEqual(wrong, [])

    def test_the_readme_leads_to_no_diary(self):
        self.assertEqual([link for link in links(read("README.md")) if "lab/" in link], [])

    def test_programs_know_the_options_of_tools(self):
        """`tools/NAME --option` in a document: the script names that option."""
        wrong = []
        for page in pages():
            for tool, options in re.findall(r"(?:^|[`\s(])(?:\./)?(tools/[\w/\-]+)((?: --?[\w\-]+)+)", read(page)):
                script = os.path.join(ROOT, tool)
                if not os.path.isfile(script):
                    continue
                beside = os.path.join(ROOT, tool.replace("-", "_"))
                text = read(tool)
                if os.path.isdir(beside):
                    text += "".join(read(os.path.relpath(os.path.join(beside, f), ROOT)) for f in os.listdir(beside))
                wrong += [f"{page}: {tool} {o}" for o in re.findall(r"--[\w\-]+", options) if o not in text]
        self.assertEqual(wrong, [])


def expanded(path):
    """a/{b,c} -> a/b, a/c."""
    m = re.search(r"\{([^{}]*)\}", path)
    if not m:
        return [path]
    return [p for choice in m.group(1).split(",") for p in expanded(path[: m.start()] + choice + path[m.end():])]


if __name__ == "__main__":
    unittest.main()
