"""Files that are whole or not there, and locks; a folder is whole where its manifest is."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import UserError
from common.files import STALE, check_writable, locked, remove_leftovers, replacing, unfinished
from common.manifest import NAME, check_file, read_manifest, write_manifest

ROOT = Path(__file__).resolve().parents[1]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def child(code: str, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "x.json"
    with replacing(path) as one:
        one.write(b"one, ")
        with replacing(path) as two:
            two.write(b"two, whole")
        assert path.read_bytes() == b"two, whole"
        one.write(b"whole")
    assert path.read_bytes() == b"one, whole" and names(tmp_path) == ["x.json"]


def test_an_error_says_which_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(OSError, match=r"x\.json") as e, replacing(path):
        raise OSError(28, "No space left on device")
    assert e.value.filename == str(path) and not names(tmp_path)
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half of it")
        raise KeyboardInterrupt
    assert not names(tmp_path)
    with replacing(tmp_path / "new" / "deep" / "x.json") as file:
        file.write(b"a folder is made")
    with pytest.raises(OSError) as e, replacing(tmp_path / "new" / "deep" / "x.json" / "y.json"):
        pass
    assert e.value.filename == str(tmp_path / "new" / "deep" / "x.json")  # not the temporary name


def test_what_a_kill_leaves_is_removed_in_time(tmp_path):
    """After a SIGKILL just before the new name the file is as it was; a later write removes old leftovers."""
    path = tmp_path / "x.json"
    path.write_text("old")
    kill = """
import os, sys, pathlib
from common import files
os.replace = lambda *a: os.kill(os.getpid(), 9)
with files.replacing(pathlib.Path(sys.argv[1])) as f:
    f.write(b"new")
"""
    assert child(kill, path).wait(60) == -signal.SIGKILL
    (left,) = set(names(tmp_path)) - {"x.json"}
    assert path.read_text() == "old" and left.startswith(".x.json.")
    other = unfinished(tmp_path / "y.json")
    other.touch()
    with replacing(path) as f:  # it could still be written to
        f.write(b"newer")
    assert path.read_bytes() == b"newer" and set(names(tmp_path)) == {"x.json", left, other.name}
    old = time.time() - STALE - 1
    for p in (tmp_path / left, other):
        os.utime(p, (old, old))
    for name in (".free.lock", ".new.lock", ".lock"):
        (tmp_path / name).touch()
    with locked(tmp_path / ".lock"):
        for name in (".free.lock", ".lock"):
            os.utime(tmp_path / name, (old, old))
        with replacing(path):  # an hour later, whatever they are of
            pass
        assert names(tmp_path) == [".lock", ".new.lock", "x.json"]
        remove_leftovers(tmp_path)  # by who holds the folder's lock
        assert names(tmp_path) == [".lock", "x.json"]


def test_what_cannot_be_written_is_found_before(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    check_writable(tmp_path / "new" / "folder" / "x.json")
    check_writable(tmp_path / "file")
    for folder in ("file", "file/a", "broken", "broken/a", "loop", "loop/a"):
        with pytest.raises(OSError) as e:
            check_writable(tmp_path / folder / "x.json")
        assert str(tmp_path) in e.value.filename and e.value.strerror
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UserError, match=str(path)):
            check_writable(path)
    assert names(tmp_path) == ["broken", "file", "loop", "new", "pipe"]


# ---- manifests -------------------------------------------------------------------------------------------


def test_a_folder_is_what_its_manifest_says(tmp_path):
    with pytest.raises(FileNotFoundError):  # no folder of ours
        read_manifest(tmp_path)
    content = bytes(range(256))
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "b.json").write_text("{}")
    write_manifest(tmp_path, {"source": "here", "words": 12}, ["b.json", "a.bin"])
    manifest = read_manifest(tmp_path)
    assert manifest["source"] == "here" and manifest["files"]["a.bin"] == hashlib.sha256(content).hexdigest()
    assert check_file(tmp_path, "a.bin") == tmp_path / "a.bin"

    (tmp_path / "c.bin").write_bytes(b"")  # which nobody wrote there
    for at in (0, 100, 255):
        damaged = bytearray(content)
        damaged[at] ^= 4
        (tmp_path / "a.bin").write_bytes(damaged)
        check_file(tmp_path, "b.json")
        for name in ("a.bin", "c.bin"):
            with pytest.raises(UserError, match=name):
                check_file(tmp_path, name)
    edited = json.loads((tmp_path / NAME).read_text()) | {"words": 6}
    (tmp_path / NAME).write_text(json.dumps(edited))
    with pytest.raises(UserError, match=NAME):
        read_manifest(tmp_path)
