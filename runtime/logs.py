"""What a run leaves to read: log.jsonl, and Weights & Biases if asked for."""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from runtime.files import replacing


class Log:
    """Entries of steps, appended to `out`/log.jsonl, and sent to a run of wandb if there is one."""

    def __init__(self, out: Path, step: int, wandb: Any = None):
        """Keeps the lines up to `step`, from which the run goes on; 0 starts a new log."""
        path = out / "log.jsonl"
        kept = [json.dumps(e) + "\n" for e in entries(out) if e["step"] <= step] if step else []
        with replacing(path) as f:
            f.write("".join(kept).encode())
        self.file, self.wandb = open(path, "a"), wandb

    def add(self, step: int, **entry: Any) -> None:
        """A number that JSON does not have (inf, nan) becomes a string, as in eval_diversity's tables."""
        known = {key: strict(value) for key, value in entry.items()}
        self.file.write(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        self.file.flush()
        if self.wandb:
            self.wandb.log(entry, step=step)

    def close(self) -> None:
        self.file.close()
        if self.wandb:
            self.wandb.finish()


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


def start_wandb(project: str, name: str, config: dict[str, Any], out: Path) -> Any:
    """A wandb run with `config`, its files in `out`: online if there is a key and a network.

    Else it is offline, and says so.
    """
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
    return wandb.init(project=project, name=name, config=config, dir=out, mode=mode)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"
