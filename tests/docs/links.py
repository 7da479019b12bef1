"""The links of Markdown pages: each leads to a file that is there and to a heading that it has.

    tests/docs/links.py FOLDER...    of every page in these folders, as an installation or an archive has them
"""

import os
import re
import sys


def outside_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def slug(heading):
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text):
    return {slug(h) for h in re.findall(r"^#+ (.*)$", outside_code(text), flags=re.M)}


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", outside_code(text)))


def dead_links(root, pages):
    """Of `pages`, paths from `root` on: one line for each link that leads nowhere, or out of `root`."""

    def read(path):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            return f.read()

    dead = []
    for page in pages:
        for link in links(read(page)):
            if re.match(r"https?:", link):
                continue
            file, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
            if target.startswith("..") or not os.path.exists(os.path.join(root, target)):
                dead.append(f"{page}: {link}")
            elif anchor and anchor not in anchors(read(target)):
                dead.append(f"{page}: {link}: no such heading")
    return dead


def pages_in(root):
    return sorted(os.path.relpath(os.path.join(folder, f), root)
                  for folder, _, files in os.walk(root) for f in files if f.endswith(".md"))


def main():
    dead = []
    for root in sys.argv[1:]:
        pages = pages_in(root)
        if not pages:
            dead.append(f"{root}: no page")
        dead += dead_links(root, pages)
    for line in dead:
        print(line)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
