"""Pictures of a report and of the documentation as readers see them: desktop, phone, dark, print.

    logel report estimate.json --history cartpole --out report.html      # the README's own run
    python -m benchmarks.pictures report.html site/index.html --out pictures
    python -m benchmarks.pictures report.html --first-screen docs/images/report.png

Needs chromium and playwright. The exit code says whether any text is cut off or lies on other text.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))


def main() -> int:
    """Take the pictures."""
    from looks import WAYS, seen
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    parser.add_argument("--first-screen", type=Path, help="Only what a first look shows, here.")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    faults = 0
    with sync_playwright() as driver:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if chosen.first_screen is not None:
            page = browser.new_page(viewport={"width": 1100, "height": 860})
            page.goto(chosen.pages[0].resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            page.screenshot(path=str(chosen.first_screen))
            return 0
        for file in chosen.pages:
            for way in WAYS:
                picture = chosen.out / f"{file.stem}-{way}.png"
                for fault in seen(browser, file.resolve().as_uri(), way, picture):
                    faults += 1
                    print(f"{file.name}, {way}: {fault}")
                print(picture)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
