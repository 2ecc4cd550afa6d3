"""What a run leaves to read: log.jsonl, and Weights & Biases if asked for."""

import contextlib
import json
import math
import os
from pathlib import Path

from runtime.files import replacing


class Log:
    """Entries of steps, appended to `out`/log.jsonl and sent to a wandb run if there is one."""

    def __init__(self, out: Path, step: int, wandb=None):
        """Keeps the lines up to `step`, which the run goes on from: 0 starts anew."""
        path = out / "log.jsonl"
        kept = [json.dumps(e) + "\n" for e in entries(out) if e["step"] <= step] if step else []
        with replacing(path) as f:
            f.write("".join(kept).encode())
        self.file, self.wandb = open(path, "a"), wandb

    def add(self, step: int, **entry) -> None:
        """A number that JSON does not have (inf, nan) is written as a string, as in eval_diversity's tables."""
        strict = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
        self.file.write(json.dumps({"step": step, **strict}, allow_nan=False) + "\n")
        self.file.flush()
        if self.wandb:
            self.wandb.log(entry, step=step)

    def close(self) -> None:
        self.file.close()
        if self.wandb:
            self.wandb.finish()


def entries(out: Path) -> list[dict]:
    """The lines of `out`/log.jsonl, numbers that JSON does not have as strings; [] where there is no log."""
    path, found = out / "log.jsonl", []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        # a line cut short by a full disk or a power cut, or damaged
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line, parse_constant=str)
            if isinstance(entry, dict) and type(entry.get("step")) is int:
                found.append(entry)
    return found


def evaluations(out: Path) -> list[dict]:
    """The entries that evaluations wrote."""
    return [e for e in entries(out) if "val_nll" in e]


def start_wandb(project: str, name: str, config: dict, out: Path):
    """A wandb run with `config`, its files in `out`: online if there is a key and a network, else offline, which it says."""
    import socket
    from urllib.parse import urlparse

    import wandb

    mode = os.environ.get("WANDB_MODE")
    if not mode:
        url = urlparse(wandb.Settings().base_url)
        try:
            socket.create_connection(
                (url.hostname, url.port or (443 if url.scheme == "https" else 80)), timeout=3
            ).close()
            mode = "online" if wandb.login(prompt=False) else "offline"
        except (OSError, wandb.Error):
            mode = "offline"
        if mode == "offline":
            print("wandb: no network or no key, logging offline; `wandb sync` uploads it later", flush=True)
    return wandb.init(project=project, name=name, config=config, dir=out, mode=mode)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    s = round(seconds)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60}:{s % 60:02}"
