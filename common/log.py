"""What a run leaves to read: log.jsonl, and Weights & Biases if asked for; and progress on the terminal."""

import contextlib
import json
import math
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tqdm import tqdm

from common.files import read_text, replacing

if TYPE_CHECKING:
    from config.defaults import TrainConfig


class Tracker(Protocol):
    """A run of another program that shows logs."""

    def log(self, entry: dict[str, Any], step: int) -> None: ...
    def finish(self) -> None: ...


class Log:
    """Entries of steps, appended to `out`/log.jsonl and sent to the `tracker`."""

    def __init__(self, out: Path, step: int, tracker: Tracker | None = None):
        """Keeps the lines up to `step`, from which the run goes on; 0 starts a new log."""
        path = out / "log.jsonl"
        kept = [json.dumps(e) + "\n" for e in entries(out) if e["step"] <= step] if step else []
        with replacing(path) as f:
            f.write("".join(kept).encode())
        self.file, self.tracker = open(path, "a"), tracker

    def add(self, step: int, **entry: Any) -> None:
        """A number that JSON does not have (inf, nan) becomes a string, as in eval_diversity's tables."""
        known = {key: strict(value) for key, value in entry.items()}
        self.file.write(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        self.file.flush()
        if self.tracker:
            self.tracker.log(entry, step=step)

    def close(self) -> None:
        self.file.close()
        if self.tracker:
            self.tracker.finish()


def strict(value: Any) -> Any:
    """A number that JSON does not have as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def entries(out: Path) -> list[dict[str, Any]]:
    """The lines of `out`/log.jsonl, numbers that JSON does not have as strings; [] if there is no log."""
    path = out / "log.jsonl"
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        # skips a line that is damaged, or cut short by a full disk or a power cut
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line, parse_constant=str)
            if isinstance(entry, dict) and type(entry.get("step")) is int:
                lines.append(entry)
    return lines


def start_wandb(c: "TrainConfig", settings: dict[str, Any]) -> Tracker:
    """The wandb run of a training with its `settings`, its files in out_dir: online if there is a key and a
    network, else offline, which it says. Its id is kept there, and a resumed training goes on with it."""
    import socket
    from urllib.parse import urlparse

    import wandb

    mode: Any = os.environ.get("WANDB_MODE")
    if not mode:
        url = urlparse(wandb.Settings().base_url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            socket.create_connection((url.hostname, port), timeout=3).close()
            mode = "online" if wandb.login(prompt=False) else "offline"
        except (OSError, wandb.Error):
            mode = "offline"
        if mode == "offline":
            print("wandb: no network or no key, logging offline; `wandb sync` uploads it later", flush=True)
    kept = Path(c.out_dir) / "wandb_id.txt"
    if not (c.resume and kept.is_file()):
        with replacing(kept) as file:
            file.write(secrets.token_hex(4).encode())
    id = read_text(kept).strip()
    about: dict[str, Any] = {"project": c.wandb_project, "name": c.name, "config": settings}
    return wandb.init(**about, dir=c.out_dir, mode=mode, id=id, resume="allow")


# -----------------------------------------------------------------------------
# How far a long work is

QUIET = 5.0  # seconds of a work before its first line in a file


class ProgressBar(tqdm):
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
