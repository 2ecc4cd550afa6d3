"""The packages that a command may need, and how to get those that are not installed."""

import importlib.util

from runtime.places import INSTALLED

# extra of pyproject.toml -> its packages, by the names that Python imports; "": those of a training
EXTRAS = {
    "": ("torch", "numpy", "safetensors", "filelock", "tiktoken", "tokenizers", "tqdm", "pydantic"),
    "tables": ("scipy", "sacrebleu", "matplotlib", "tabulate", "jinja2", "optuna"),
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
    """What to say of these: all their names, and the one command that installs them with their extras."""
    extras = [extra for extra, has in EXTRAS.items() if {*has} & {*modules}]
    ours = {name for extra in extras for name in EXTRAS[extra]}
    names = [PIP_NAMES.get(name, name) for name in modules]
    wanted = [PIP_NAMES.get(name, name) for name in modules if name not in ours]
    if extras:
        package = "nanoheads" if INSTALLED else "."  # a checkout is named by its folder
        named = ",".join(filter(None, extras))
        wanted.insert(0, f'"{package}[{named}]"' if named else package)
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    are = "are" if len(names) > 1 else "is"
    return f"{listed} {are} not installed, which this needs: pip install {' '.join(wanted)}"
