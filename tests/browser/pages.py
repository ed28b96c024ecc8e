"""A report opened in a browser, and what the tests ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Of every element with text of its own that is shown: the least contrast between the text and what is behind it (WCAG
# 2.1, contrast ratio), and where.
CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let up = node; up; up = up.parentElement) {
      const color = channels(getComputedStyle(up).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = [99, ""];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("script")) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, node.tagName + "." + node.className + " " + node.textContent.slice(0, 40)];
  }
  return least;
}"""

# Labels of one axis that lie over one another.
OVERLAPS = """() => {
  const found = [];
  for (const kind of [".grid-x span", ".grid-y span", ".step-number"])
    for (const area of document.querySelectorAll(".area")) {
      const boxes = [...area.querySelectorAll(kind)].map((one) => [one.getBoundingClientRect(), one.textContent]);
      for (const [i, [a, word]] of boxes.entries())
        for (const [b, other] of boxes.slice(i + 1))
          if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push([word, other]);
    }
  return found;
}"""

WIDTHS = "() => [document.documentElement.scrollWidth, innerWidth]"
OPEN_ALL = "() => document.querySelectorAll('details').forEach((one) => (one.open = true))"


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1280, scheme: str = "light", script: bool = True
) -> Iterator[Page]:
    """The page, closed afterwards. AssertionError when it logged an error, raised one or asked for anything."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
        java_script_enabled=script,
        has_touch=width < 500,
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    troubles: list[str] = []
    page.on("console", lambda message: troubles.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda problem: troubles.append(f"error: {problem}"))
    page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request", lambda request: None if request.url == path.as_uri() else troubles.append(f"asked: {request.url}")
    )
    try:
        page.goto(path.as_uri())
        yield page
        assert troubles == []
    finally:
        context.close()
