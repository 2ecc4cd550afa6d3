"""The site of docs/, as mkdocs.yml has it: README.md is where it starts, the tables of results/ are pages,
and a link to anything else of the repository leads there."""

import posixpath
import re
from pathlib import Path

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r'(?<!")\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)')  # HEADS["name"](V) is none


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what stands outside of docs/ to the site's files."""
    beside = {"index.md": ROOT / "README.md"}
    for path in sorted([*ROOT.glob("results/*.md"), *ROOT.glob("results/*.png")]):
        beside[path.relative_to(ROOT).as_posix()] = path
    for place, path in beside.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links, which are those of the repository, as the site has them."""
    at = {str(file.abs_src_path): file.src_uri for file in files if file.inclusion.is_included()}

    def led(match: re.Match[str]) -> str:
        words, target, anchor = match.groups(default="")
        path = (Path(str(page.file.abs_src_path)).parent / target).resolve()
        if "://" in target or not path.exists():  # mkdocs names what is not there
            return match[0]
        if place := at.get(str(path)):
            target = posixpath.relpath(place, posixpath.dirname(page.file.src_uri))
        elif config.repo_url:
            target = f"{config.repo_url}/blob/main/{path.relative_to(ROOT).as_posix()}"
        else:
            return words
        return f"[{words}]({target}{anchor})"

    return LINK.sub(led, markdown).replace(" ± ", "\u00a0±\u00a0")  # an interval stays on one line


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """The theme lists what is below a page's first title: a second one (# The journal), too."""
    if page.toc.items:
        first, *others = page.toc.items
        first.children += others


class Columns(Extension):
    """Docstrings name arguments in one column and say what they are in the next: here that is a list."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^(?:.+\n?)+", listed, obj.docstring.value)


def listed(match: re.Match[str]) -> str:
    """A paragraph in two columns as a list; any other as it is."""
    text = match[0]
    if not (columns := re.search(r"(?m)^(\w+  +)(?=\S)", text)):
        return text
    name = re.compile(rf"(?m)^(\w+) +(?<=^.{{{len(columns[1])}}})(?=\S)")
    lead, *rest = name.split(text)
    items = [f"- `{key}`: {' '.join(says.split())}\n" for key, says in zip(rest[::2], rest[1::2])]
    return f"{lead}\n{''.join(items)}" if lead else "".join(items)
