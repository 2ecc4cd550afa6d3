"""How far a long work is: a bar on a terminal, lines in a file."""

import sys
import time
from typing import Any

from tqdm import tqdm

QUIET = 5.0  # seconds of a work before its first line in a file


class Progress(tqdm):
    """tqdm on a terminal. In a file, where its bar would be a line for each time that it moves, a line each
    tenth."""

    def __init__(self, *args: Any, **settings: Any):
        self.in_file = not (sys.stderr and sys.stderr.isatty())
        self.tenths, self.began = 0, time.monotonic()
        if self.in_file:
            settings |= {"mininterval": 0.0, "miniters": 1, "file": sys.stderr}
        super().__init__(*args, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        if not self.in_file:
            return super().display(msg, pos)
        tenths = int(10 * self.n / self.total) if self.total else 0
        if tenths > self.tenths and time.monotonic() - self.began >= QUIET:
            print(self, file=sys.stderr, flush=True)
        self.tenths = tenths
        return None

    def close(self) -> None:
        if self.in_file:
            self.disable: bool = True  # tqdm would write the bar once more
            self._decr_instances(self)
        super().close()
