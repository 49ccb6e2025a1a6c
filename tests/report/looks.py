"""Whether a page looks right: whether text is cut off, or lies on other text.

`python -m benchmarks.pictures` takes the pictures that people look at.
"""

from __future__ import annotations

from typing import Any

# How a reader may come to a page: window, colours, medium.
WAYS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1200, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "print": {"viewport": {"width": 794, "height": 1123}},
}
# Texts of which each is all that its element holds; boxes are compared pair by pair. A pixel of
# overlap is a matter of line heights.
FAULTS = """() => {
  const visible = e => {
    const r = e.getBoundingClientRect(), s = getComputedStyle(e);
    return r.width > 1 && r.height > 1 && s.visibility !== "hidden" && +s.opacity > 0.05;
  };
  const words = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const texts = [...document.querySelectorAll("body *")].filter(
    e => words(e) && visible(e) && !e.closest("#tip, script, style, nav, header.md-header")
      && !e.closest("[hidden]"));
  const faults = [];
  // Line by line: what is wrapped leaves room for others.
  const boxes = texts.flatMap(e => {
    const t = e.textContent.trim().slice(0, 40);
    if (e.closest("svg")) return [{e, t, r: e.getBoundingClientRect()}];
    return [...e.childNodes].filter(n => n.nodeType === 3).flatMap(n => {
      const range = document.createRange();
      range.selectNodeContents(n);
      return [...range.getClientRects()].map(r => ({e, t, r}));
    });
  }).filter(b => b.r.width > 1 && b.r.height > 1);
  for (const {e, r, t} of boxes) {
    for (let up = e.parentElement; up && up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up), frame = up.getBoundingClientRect();
      if (/auto|scroll/.test(style.overflowX + style.overflowY)) break;
      if (style.overflowX === "hidden" && (r.right > frame.right + 2 || r.left < frame.left - 2))
        faults.push(`cut off: ${t}`);
    }
    if (r.right > document.documentElement.clientWidth + 2 && !e.closest(".scroll, pre, table"))
      faults.push(`beyond the edge: ${t}`);
  }
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const a = boxes[i], b = boxes[j];
    if (a.e === b.e) continue;
    const scrolls = x => x.e.closest(".scroll, .player, pre");
    if (scrolls(a) !== scrolls(b)) continue;
    const width = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left);
    const height = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
    const small = Math.min(a.r.height, b.r.height);
    if (width > 3 && height > 0.4 * small) faults.push(`${a.t} | ${b.t}`);
  }
  return [...new Set(faults)];
}"""


def seen(
    browser: Any, url: str, way: str, picture: Any = None, *, ready: str = "body"
) -> list[str]:
    """What is wrong with a page as a reader sees it; a picture is taken on request."""
    context = browser.new_context(**WAYS[way])
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(ready, timeout=60_000)
    if way == "print":
        page.emulate_media(media="print")
    if picture is not None:
        page.screenshot(path=str(picture), full_page=True)
    found: list[str] = page.evaluate(FAULTS)
    context.close()
    return found
