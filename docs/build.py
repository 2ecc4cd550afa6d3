"""README.md and docs/*.md from docs/templates/, with the measured numbers of results/ and bench/ filled in.

    python docs/build.py --write     writes them
    python docs/build.py --check     exits 1 if a file is not what its template and the numbers give

In a template, {{NAME:FORMAT}} is a number of docs/sources.py or a table of docs/tables.py.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs import gallery, sources
from docs.sources import ROOT, Differences, Span
from docs.tables import Numbers, blocks, fits

TEMPLATES = ROOT / "docs" / "templates"
PLACE = re.compile(r"\{\{(.+?)\}\}")


def all_numbers() -> Numbers:
    """Whatever a template may name."""
    n = sources.numbers()
    n["slope"] = {row: gallery.slope_of(row) for row in gallery.ROWS}
    n["gain_slope"] = {row: gallery.start_slope(row, gain) for row, gain in gallery.GAIN_HEADS.items()}
    n["gain_of"] = gallery.GAIN_HEADS
    found = n["search"]["heads_250"]
    n["tuned_slope"] = {row: gallery.start_slope(row, at.gain) for row, at in found.items()}
    slopes, gains = n["tuned_slope"].values(), [at.gain for at in found.values()]
    n["grammar_slope"] = Span(
        gallery.start_slope(row, at.gain, "grammar") for row, at in n["search"]["grammar"].items()
    )
    n["best_at"] = SimpleNamespace(slope=Span(slopes), gain=Span(gains))
    n["grammar_diff"] = {row: Differences(r) for row, r in n["grammar"].items()}
    softmax, gain = (n["seeds"][name].mean for name in ("softmax", "gain 4"))
    n["below"] = SimpleNamespace(gain=1 - gain / softmax)
    others = {row: ratio for row, ratio in n["ratio_1000"].items() if row != "baseline"}
    n["best_ratio"] = min(ratio.mean for ratio in others.values())
    n["am_behind"] = others["am_softmax"].mean - 1
    n["at_am_rate"] = Span(
        n["single"][f"4,000 steps, am_softmax's learning rate, {seed}"].val_ppl[4000] for seed in (2, 3, 4)
    )
    n["once_behind"] = n["ratio_at"]["heads_once"]["am_softmax"].mean - 1
    n["order_1000"] = Span(ratio.mean for ratio in n["ratio_1000"].values())
    n["order_250"] = Span(n["tuned_ratio"][row].mean for row in n["ratio_1000"])
    n["fit"] = fits(n["memorised"])
    n["blocks"] = blocks(n)
    return n


WIDTH = 110
# Beginnings of paragraphs whose lines stay as they are: tables, headings, code, comments, images
VERBATIM = ("|", "#", "    ", "```", "<", "![")


def filled(item: str) -> str:
    """One paragraph or list item; code, a link's words and a mean's interval stay on one line."""
    words = re.sub(r"`[^`]*`|\[[^]]*\]\(| ± ", lambda m: m[0].replace(" ", "\0"), " ".join(item.split()))
    indent = "  " if item.startswith("- ") else ""
    lines = textwrap.wrap(
        words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def wrapped(text: str) -> str:
    """Markdown whose prose is filled to WIDTH: numbers have not the length of their names."""
    out, fenced = [], False
    for block in text.split("\n\n"):
        verbatim = fenced or block.lstrip("\n").startswith(VERBATIM)
        fenced ^= block.count("```") % 2 == 1
        out.append(block if verbatim else "\n".join(map(filled, re.split(r"\n(?=- )", block))))
    return "\n\n".join(out).rstrip("\n") + "\n"


def render(text: str, numbers: Numbers) -> str:
    """The template with its places filled in. ValueError for a place that names nothing."""

    def fill(place: re.Match[str]) -> str:
        try:
            return f"{{{place[1]}}}".format_map(numbers)
        except (KeyError, AttributeError, IndexError, ValueError, TypeError) as e:
            raise ValueError(f"{place[0]} names no number: {type(e).__name__}: {e}") from None

    return PLACE.sub(fill, text)


def page_of(template: Path) -> Path:
    """README.md is in the root, every other page in docs/."""
    return ROOT / "README.md" if template.name == "README.md" else ROOT / "docs" / template.name


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that has a template, and what it should say."""
    numbers = all_numbers()
    for template in sorted(TEMPLATES.glob("*.md")):
        note = f"<!-- Made by docs/build.py (make docs): edit {shown(template)} -->\n\n"
        text = template.read_text(encoding="utf-8")
        try:
            yield page_of(template), note + wrapped(render(text, numbers))
        except ValueError as e:
            raise ValueError(f"{template.name}: {e}") from None


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true")
    p.add_argument("--check", action="store_true")
    args = p.parse_args(argv)
    if args.write == args.check:
        p.error("give --write or --check")
    differ = []
    for path, text in pages():
        if args.write:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            differ.append(shown(path))
    if differ:
        print(f"not what results/ and bench/ give: {', '.join(differ)}: run make docs", file=sys.stderr)
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
