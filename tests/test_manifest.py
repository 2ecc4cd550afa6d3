"""common/manifest.py: a folder is whole where its manifest is, and holds what was written."""

import hashlib
import json

import pytest

from common.errors import UserError
from common.manifest import NAME, check_file, read_manifest, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "b.json").write_text("{}")
    write_manifest(tmp_path, {"source": "here", "words": 12}, ["b.json", "a.bin"])
    return tmp_path


def test_a_manifest_says_what_the_folder_is_made_of_and_has_the_digests_of_its_files(folder):
    manifest = read_manifest(folder)
    digest = hashlib.sha256(bytes(range(256))).hexdigest()
    assert manifest["source"] == "here" and manifest["files"]["a.bin"] == digest
    assert check_file(folder, "a.bin") == folder / "a.bin"


@pytest.mark.parametrize("at", [0, 100, 255])
def test_a_flipped_bit_names_the_file(folder, at):
    damaged = bytearray(range(256))
    damaged[at] ^= 4
    (folder / "a.bin").write_bytes(damaged)
    check_file(folder, "b.json")
    with pytest.raises(UserError, match="a.bin"):
        check_file(folder, "a.bin")


def test_a_file_that_nobody_wrote_there_is_refused(folder):
    (folder / "c.bin").write_bytes(b"")
    with pytest.raises(UserError, match="c.bin"):
        check_file(folder, "c.bin")


def test_an_edited_manifest_is_refused(folder):
    manifest = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps(manifest | {"words": 6}))
    with pytest.raises(UserError, match=NAME):
        read_manifest(folder)


def test_no_manifest_is_no_folder_of_ours(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)
