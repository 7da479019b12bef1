#!/usr/bin/env python3
"""A report of gptc report in headless Chromium.

  report_compare.py FILE CHARTS    on a phone, in the light and in the dark: nothing is loaded but the file, nothing is logged
                                   as an error, and all of so many charts are as wide as the screen lets them be

Exit status: 0 right, 1 not, 77 Chromium is missing.
"""
import sys
import tempfile
import urllib.parse

sys.dont_write_bytecode = True
from chromium import Page  # noqa: E402: leaves nothing in the source tree

file, charts = sys.argv[1:]
WIDTH = 360

with tempfile.TemporaryDirectory() as folder:
    page = Page(folder)
    page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=740, deviceScaleFactor=2, mobile=True)
    grounds = set()
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Page.navigate", url="file://" + urllib.parse.quote(file))
        page.until("document.readyState === 'complete' && document.querySelector('h1')")
        assert page.do("document.documentElement.scrollWidth") <= WIDTH, page.do("document.documentElement.scrollWidth")
        widths = page.do("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        assert len(widths) == int(charts) and all(WIDTH - 60 < w <= WIDTH for w in widths), widths
        # Curves have the colours of their runs, and texts that of the page.
        lines = page.do("[...document.querySelectorAll('polyline')].map(l => getComputedStyle(l).stroke)")
        assert lines and all(c.startswith("rgb") for c in lines), lines
        ink = page.do("getComputedStyle(document.body).color")
        assert set(page.do("[...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill)")) == {ink}
        grounds.add(page.do("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, grounds
    assert not page.do("document.querySelectorAll('script').length")
    assert all(r.startswith("file://") for r in page.requests), page.requests
    assert not page.errors, page.errors
    page.close()
print("the report is readable")
