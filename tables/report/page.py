"""Tables as HTML: one file that holds all it needs, and asks no network for anything."""

from datetime import date
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tables.report.tables import ReportedTable

HERE = Path(__file__).parent
# What is filled in is escaped; our own style and script are included as they stand
PAGES = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
PAGES.trim_blocks = PAGES.lstrip_blocks = True


def breakable(name: str) -> Markup:
    """A name that a line may break at its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


PAGES.globals["breakable"] = breakable


def render(tables: list[ReportedTable], command: str = "python report.py") -> str:
    """The page; it says that `command` made it."""
    about = {row: what for table in tables for row, what in table.about.items()}
    page = PAGES.get_template("page.html")
    return page.render(tables=tables, about=about, command=command, date=date.today().isoformat()) + "\n"
