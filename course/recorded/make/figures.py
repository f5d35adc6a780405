"""Make a PNG of every drawing in course/figures; run after an SVG has changed.

JupyterLab shows no SVG that is attached to a cell, so that notebooks carry these.
"""

import hashlib
import io
import sys
from pathlib import Path

from PIL import Image
from browser import chromium, find_browser
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "course" / "figures"
MADE_OF = "SHA-256 of its SVG"
SCALE = 1.5  # sharp where a cell is 1,200 pixels wide


def digest(drawing):
    return hashlib.sha256(drawing.read_bytes()).hexdigest()


def is_current(drawing):
    """Whether the picture beside a drawing was made of it."""
    picture = drawing.with_suffix(".png")
    return picture.is_file() and Image.open(picture).info.get(MADE_OF) == digest(drawing)


def main():
    """Make the pictures that are missing or older than their drawing."""
    executable, why_not = find_browser()
    if why_not:
        sys.exit(why_not)
    with chromium(executable) as started:
        page = started.new_page(device_scale_factor=SCALE)
        for drawing in sorted(FIGURES.glob("*.svg")):
            if not is_current(drawing):
                page.set_content(f"<style>body{{margin:0}}</style>{drawing.read_text('utf-8')}")
                shot = page.locator("svg").first.screenshot()
                note = PngInfo()
                note.add_text(MADE_OF, digest(drawing))
                few = Image.open(io.BytesIO(shot)).convert("RGB").quantize(128)
                few.save(drawing.with_suffix(".png"), optimize=True, pnginfo=note)
                print(f"wrote {drawing.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
