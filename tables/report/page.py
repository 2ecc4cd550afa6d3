"""A report as HTML: one file that holds all it needs, and asks no network for anything."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tables.report.runs import ReportedRuns, Token
from tables.report.tables import ReportedTable, about_rows, different_settings

HERE = Path(__file__).parent
# Everything in a page is escaped but for our own style and script
PAGES = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
PAGES.trim_blocks = PAGES.lstrip_blocks = True


def breakable(name: str) -> Markup:
    """A name that a line may break at its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


PAGES.globals["breakable"] = breakable


def inline(name: str) -> Markup:
    """A file of ours as it stands: what is in it is no text to be escaped."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def shades(token: Token, scale: dict[str, float]) -> str:
    """The shades of a token, from 0 to 1, as a style."""
    values = {"nll": token.nll, "epistemic": token.epistemic or 0.0}
    shade = (f"--{k}:{min(1.0, max(0.0, v / scale[k])):.2f}" for k, v in values.items() if scale[k] > 0)
    return ";".join(shade)


def token_title(token: Token) -> str:
    """What a token says of itself."""
    epistemic = "" if token.epistemic is None else f", epistemic {token.epistemic:.3f}"
    return f"p = {token.p:.3f}, -log p {token.nll:.2f}{epistemic}"


def render(
    tables: list[ReportedTable],
    runs: ReportedRuns | None,
    configs: Mapping[str, dict[str, Any]] | None = None,
    command: str = "python report.py",
) -> str:
    """The page.

    configs   of the runs, by their names
    command   what the page says that it was made by
    """
    configs = configs or {}
    about = about_rows(configs) | {row: what for table in tables for row, what in table.about.items()}
    shown: dict[str, Any] = {"tables": tables, "runs": runs, "about": about, "command": command}
    shown["settings"] = different_settings(configs)
    shown |= {"shades": shades, "token_title": token_title}
    shown |= {"style": inline("style.css"), "script": inline("script.js"), "date": date.today().isoformat()}
    return PAGES.get_template("page.html").render(shown) + "\n"
