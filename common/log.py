"""What a run leaves to read: log.jsonl, and Weights & Biases if asked for; and progress on the terminal."""

import contextlib
import json
import math
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from common.files import read_text, replacing

if TYPE_CHECKING:
    from config.defaults import TrainConfig


class Log:
    """Entries of steps, appended to `out`/log.jsonl and sent to the `tracker`, a run of wandb."""

    def __init__(self, out: Path, step: int, tracker: Any = None):
        """Keeps the lines up to `step`, from which the run goes on; 0 starts a new log."""
        path = out / "log.jsonl"
        kept = [json.dumps(e) + "\n" for e in entries(out) if e["step"] <= step] if step else []
        with replacing(path) as f:
            f.write("".join(kept).encode())
        self.file, self.tracker = open(path, "a"), tracker

    def add(self, step: int, **entry: Any) -> None:
        """A number that JSON does not have (inf, nan) becomes a string."""
        known = {key: strict(value) for key, value in entry.items()}
        self.file.write(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        self.file.flush()
        if self.tracker:
            self.tracker.log(entry, step=step)

    def close(self) -> None:
        self.file.close()


def strict(value: Any) -> Any:
    """ "inf", "-inf" or "nan" for these numbers, which JSON does not have; any other value as it is."""
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


def start_wandb(c: "TrainConfig", settings: dict[str, Any]) -> Any:
    """The wandb run of a training with its `settings`, its files in out_dir: online if there is a key and a
    network, else offline, which it says. Its id is kept there, and a resumed training goes on with it."""
    import wandb

    from common.hub import silent

    mode: Any = os.environ.get("WANDB_MODE")
    if not mode:
        mode = "offline" if silent(wandb.Settings().base_url) or not wandb.login(prompt=False) else "online"
        if mode == "offline":
            print("wandb: no network or no key, logging offline; `wandb sync` uploads it later", flush=True)
    kept = Path(c.out_dir) / "wandb_id.txt"
    if not (c.resume and kept.is_file()):
        with replacing(kept) as file:
            file.write(secrets.token_hex(4).encode())
    about: dict[str, Any] = {"project": c.wandb_project, "name": c.name, "config": settings}
    return wandb.init(**about, dir=c.out_dir, mode=mode, id=read_text(kept).strip(), resume="allow")


# -----------------------------------------------------------------------------
# How far a long work is


def progress_bar(*args: Any, **settings: Any) -> tqdm:
    """tqdm. In a file, where each line of it stays, it has one a minute, and none for a work of seconds."""
    in_file = not (sys.stderr and sys.stderr.isatty())
    seldom = {"mininterval": 60, "delay": 5, "disable": not sys.stderr} if in_file else {}
    return tqdm(*args, **settings, **seldom)
