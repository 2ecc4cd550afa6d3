"""A folder's manifest: what the folder was made of, and the SHA-256 of each of its files.

manifest.json is written last. Where it is, the folder is whole; a file that was damaged or exchanged since is
found where it is opened. Prepared text, label stores and checkpoints have one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError, reading
from common.files import read_json, write_json

NAME = "manifest.json"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, about: Mapping[str, Any], files: Iterable[str]) -> None:
    """Writes the manifest of `folder`: `about`, JSON values, and the digests of its `files`, names in it."""
    content = {**about, "files": {name: sha256_of(folder / name) for name in sorted(files)}}
    write_json(folder / NAME, content | {"sha256": _own_digest(content)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, with its "files". FileNotFoundError if there is none; UserError if it is
    damaged, or was edited."""
    content = read_json(folder / NAME, {"files": dict[str, str], "sha256": str})
    with reading(folder / NAME):
        if content.pop("sha256") != _own_digest(content):
            raise UserError("it has changed since it was written: its SHA-256 is another")
    return content


def check_file(folder: Path, name: str, manifest: Mapping[str, Any] | None = None) -> Path:
    """The path of the file `name` of `folder`. UserError naming the file if it is none of the manifest's, or
    has changed since that was written. `manifest`: read already."""
    path, files = folder / name, (manifest or read_manifest(folder))["files"]
    with reading(path):
        if name not in files:
            raise UserError(f"it is not in {folder / NAME}")
        if sha256_of(path) != files[name]:
            raise UserError("it has changed since it was written: its SHA-256 is another")
    return path


def _own_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
