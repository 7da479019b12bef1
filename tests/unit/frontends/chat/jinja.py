#!/usr/bin/env python3
"""The cases of the chat templates' test, by Jinja itself, set up as transformers does it.

  jinja.py          each case has the result that stands there
  jinja.py --write  writes the results

cases.txt: templates, each with its result behind a line ----, separated by lines ====. A template that fails has the
result ERROR. Exit status: 0 equal, 1 not, 77 Jinja is missing.
"""
import json
import os
import sys

try:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

FOLDER = os.path.dirname(os.path.abspath(__file__))


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception


def rendered(template, variables):
    try:
        return environment.from_string(template).render(**variables, bos_token="<s>", eos_token="</s>")
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError):
        return "ERROR"


with open(os.path.join(FOLDER, "variables.json"), encoding="utf-8") as f:
    variables = json.load(f)
with open(os.path.join(FOLDER, "cases.txt"), encoding="utf-8", newline="\n") as f:
    cases = [case.split("\n----\n") for case in f.read().split("\n====\n")]
results = [rendered(case[0], variables) for case in cases]
if sys.argv[1:] == ["--write"]:
    with open(os.path.join(FOLDER, "cases.txt"), "w", encoding="utf-8", newline="\n") as f:
        f.write("\n====\n".join(f"{case[0]}\n----\n{result}" for case, result in zip(cases, results)))
wrong = [case[0] for case, result in zip(cases, results) if case[1:] != [result]]
for case in wrong:
    print("differs:", case)
print(f"Jinja {jinja2.__version__}: {len(cases) - len(wrong)} of {len(cases)} templates are equal")
sys.exit(1 if wrong and sys.argv[1:] != ["--write"] else 0)
