"""README.md and docs/*.md from docs/templates/, with the measured numbers of results/ and bench/ filled in.

    python docs/build.py --write     writes them
    python docs/build.py --check     exits 1 if a file is not what its template and the numbers give

A template is one of Jinja. {{EXPRESSION:FORMAT}} is a number: the expression may use the functions of
docs/sources.py and of environment(), the format is Python's.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jinja2 import Environment, StrictUndefined, TemplateError

from docs import gallery, sources
from docs.sources import ROOT, Rows, Span, Values
from evaluation.settings import TableConfig
from labs.classes.judge import PUBLISHED
from labs.synthetic.tasks import TASKS
from runtime.configurator import configure

TEMPLATES = ROOT / "docs" / "templates"
PLACE = re.compile(r"\{\{(.+?)(?::(\+?,?(?:\.\d+)?[defg%]|,))?\}\}")


def table(head: list[str], left: int = 1) -> str:
    """The first two lines of a table whose first `left` columns are text and the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, rule))


def cell(rows: Rows, key: str, spec: str) -> str:
    """The number, or "-" where the row has none."""
    return format(getattr(rows, key), spec) if any(e.get(key) is not None for e in rows.entries) else "-"


def ranked(models: dict[str, Rows], key: str) -> list[tuple[str, Rows]]:
    """The rows, lowest first."""
    return sorted(models.items(), key=lambda item: getattr(item[1], key).mean)


def star(name: str, row: str, key: str) -> str:
    """A mark for a row that cannot be told from the best."""
    return " *" if sources.summary(name)[row].entries[0].get(f"{key}_best") else ""


def best(run: str) -> Values:
    """The lowest validation perplexity of a run of results/single_runs.jsonl, or of a row of them."""
    return sources.curves("single_runs")[run].curve.val_ppl.lowest


def names(rows: Iterable[str]) -> str:
    """`a`, `b` and `c`; "none"."""
    *most, last = [f"`{row}`" for row in rows] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def environment() -> Environment:
    env = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"form": format, "cell": cell, "ranked": ranked}
    shared = "record rows curves decoded dearest frontier verdict told classified ratios shared_ratios "
    shared += "standing search fits written bench full_size hours"
    env.globals |= {name: getattr(sources, name) for name in shared.split()}
    env.globals |= {"table": table, "star": star, "best": best, "names": names, "span": Span}
    env.globals |= {"slope": gallery.slope_of}
    env.globals |= {"planned": len(configure(TableConfig, [str(ROOT / "config/tables/heads.py")]).rows)}
    env.globals |= {"published": PUBLISHED, "tasks": TASKS, "peaks": sources.PEAK_FLOPS}
    return env


def formatted(text: str) -> str:
    """{{EXPRESSION:FORMAT}} as Jinja has it."""
    return PLACE.sub(lambda m: f'{{{{ ({m[1]})|form("{m[2]}") }}}}' if m[2] else m[0], text)


def render(text: str, env: Environment) -> str:
    """The template with its places filled in. ValueError for a place that names nothing."""
    try:
        return env.from_string(formatted(text)).render()
    except (TemplateError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise ValueError(f"a place names no number: {type(e).__name__}: {e}") from None


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
    for block in re.split(r"\n{2,}", text):
        verbatim = fenced or block.startswith(VERBATIM)
        fenced ^= block.count("```") % 2 == 1
        out.append(block if verbatim else "\n".join(map(filled, re.split(r"\n(?=- )", block))))
    return "\n\n".join(out).rstrip("\n") + "\n"


def page_of(template: Path) -> Path:
    """README.md is in the root, every other page in docs/."""
    return ROOT / "README.md" if template.name == "README.md" else ROOT / "docs" / template.name


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that has a template, and what it should say."""
    env = environment()
    for template in sorted(TEMPLATES.glob("*.md")):
        note = f"<!-- Made by docs/build.py (make docs): edit {shown(template)} -->\n\n"
        text = template.read_text(encoding="utf-8")
        try:
            yield page_of(template), note + wrapped(render(text, env))
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
