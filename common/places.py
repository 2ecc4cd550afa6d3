"""Where the code is, and where a user works; what is found there by name, and which packages are."""

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

CODE = Path(__file__).resolve().parents[1]
# In a checkout both are one. An installed nanoHeads (pip install .) lies among Python's packages, where
# nothing should be written: there prepared data stand in data/ of the current folder, beside out/.
INSTALLED = not (CODE / "pyproject.toml").is_file()
WORK = Path.cwd() if INSTALLED else CODE


def called(text: str) -> str:
    """`text` with the commands in it as one calls them here: installed, `python train.py` is
    `nanoheads train`."""
    if not INSTALLED:
        return text
    text = re.sub(r"python (?:data|labs)(?:/\w+)?/(\w+)/prepare\.py", r"nanoheads prepare \1", text)
    return re.sub(r"python ([\w/]+)\.py", r"nanoheads \1", text)


def labs_with(part: str) -> list[str]:
    """The names of the labs that have labs/NAME/`part`.py: see labs/__init__.py."""
    return sorted(path.parent.name for path in CODE.glob(f"labs/*/{part}.py"))


def registered(core: str, registry: str, part: str) -> dict[str, str]:
    """name -> module of each entry of the dict `registry`, in the module `core` and in labs/LAB/`part`.py.

    Read from the sources where they are not imported yet.
    """
    modules = [core, *(f"labs.{lab}.{part}" for lab in labs_with(part))]
    return {name: module for module in modules for name in _keys(module, registry)}


def _keys(module: str, registry: str) -> list[str]:
    if module in sys.modules:
        return list(getattr(sys.modules[module], registry))
    path = CODE.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(name), value=ast.Dict(keys=keys))
                | ast.Assign(targets=[ast.Name(name)], value=ast.Dict(keys=keys))
            ) if name == registry:
                return [ast.literal_eval(key) for key in keys if key]
    raise LookupError(f"{module} has no dict {registry}")


def heads() -> dict[str, str]:
    """The module of each output head by its name: HEADS of heads/, and of labs/LAB/heads.py."""
    return registered("heads", "HEADS", "heads")


def trunks() -> dict[str, str]:
    """The module of each trunk by its name: TRUNKS of model.py, and of labs/LAB/trunk.py."""
    return registered("model", "TRUNKS", "trunk")


def imported(found: dict[str, str], registry: str, name: str) -> Any:
    """The entry `name` of a registry, its module imported. ValueError naming those that there are."""
    if name not in found:
        raise ValueError(f"{registry[:-1].lower()} = {name!r}: use one of {', '.join(found)}")
    return getattr(importlib.import_module(found[name]), registry)[name]


def translated(config: dict[str, Any]) -> dict[str, Any]:
    """A recorded configuration with today's keys: `translate` of labs/LAB/recorded.py."""
    for lab in labs_with("recorded"):
        config = importlib.import_module(f"labs.{lab}.recorded").translate(config)
    return config


def find(path: str | Path) -> Path:
    """`path`, if it is there from the current folder; else what has that path in the code or in a lab."""
    if Path(path).exists() or Path(path).is_absolute():
        return Path(path)
    return next((p for p in (CODE / path, *sorted(CODE.glob(f"labs/*/{path}"))) if p.is_file()), Path(path))


# -----------------------------------------------------------------------------
# Packages that a command may need

# extra of pyproject.toml -> its packages, by the names that Python imports; "": those of a training
EXTRAS = {
    "": ("torch", "numpy", "safetensors", "filelock", "tiktoken", "tokenizers", "tqdm", "pydantic"),
    "tables": ("scipy", "sacrebleu", "matplotlib", "pandas", "tabulate", "jinja2", "optuna"),
    "hub": ("datasets", "transformers", "pyarrow", "huggingface_hub"),
    "bayes": ("torchbnn",),
    "images": ("sklearn",),
    "wandb": ("wandb",),
    "mauve": ("mauve",),
}
PIP_NAMES = {"sklearn": "scikit-learn", "mauve": "mauve-text", "huggingface_hub": "huggingface-hub"}


def missing(*modules: str) -> list[str]:
    """Those that are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def not_installed(*modules: str) -> str:
    """What to say of these: all their names, and the one command that installs them, in a checkout with their
    extras. No index has the package itself."""
    extras = [extra for extra, has in EXTRAS.items() if {*has} & {*modules} and not INSTALLED]
    ours = {name for extra in extras for name in EXTRAS[extra]}
    names = [PIP_NAMES.get(name, name) for name in modules]
    wanted = [PIP_NAMES.get(name, name) for name in modules if name not in ours]
    if extras:
        named = ",".join(filter(None, extras))
        wanted.insert(0, f'".[{named}]"' if named else ".")
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    are = "are" if len(names) > 1 else "is"
    return f"{listed} {are} not installed, which this needs: pip install {' '.join(wanted)}"


# -----------------------------------------------------------------------------
# Where a row comes from


def commit() -> str:
    """The repository's commit; "" where there is none.

    With a "+" behind it if files have changed since, except those of results/.
    """
    if INSTALLED or not shutil.which("git"):  # installed: perhaps within somebody's other repository
        return ""
    git = partial(subprocess.run, cwd=CODE, capture_output=True, text=True)
    head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    changed = git(["git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/results"]).stdout
    return head + ("+" if head and changed else "")


def versions() -> dict[str, str]:
    packages = ("torch", "numpy", "sacrebleu", "tokenizers", "tiktoken")
    return {"python": sys.version.split()[0], **{p: version(p) for p in packages}}
