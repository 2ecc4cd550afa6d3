"""How far a long work is."""

import io
import sys

import pytest

from common import log as progress
from common.log import ProgressBar


class Stream(io.StringIO):
    terminal = False

    def isatty(self) -> bool:
        return self.terminal


def patched(monkeypatch, quiet: float = 0.0, terminal: bool = False) -> Stream:
    """sys.stderr from now on."""
    stream = Stream()
    stream.terminal = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "QUIET", quiet)
    return stream


@pytest.mark.parametrize("leave", [True, False])
def test_in_a_file_it_is_a_line_each_tenth(monkeypatch, leave):
    stderr = patched(monkeypatch)
    assert list(ProgressBar(range(200), desc="labels", leave=leave)) == list(range(200))
    lines = stderr.getvalue().splitlines()
    assert [line.split("%")[0] for line in lines] == [f"labels: {n:>3}" for n in range(10, 101, 10)]
    assert "\r" not in stderr.getvalue()


def test_a_short_work_writes_nothing(monkeypatch):
    stderr = patched(monkeypatch, quiet=60.0)
    with ProgressBar(total=50, desc="x") as bar:
        for _ in range(50):
            bar.update()
    assert stderr.getvalue() == ""


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    stderr = patched(monkeypatch, terminal=True)
    for _ in ProgressBar(range(3), desc="x"):
        pass
    assert "\rx: 100%" in stderr.getvalue()
