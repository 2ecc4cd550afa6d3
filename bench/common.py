"""What the benchmarks share: programs that take turns, where they ran, their JSON."""

import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from runtime.device import ISA_VARIABLE, capabilities, choose_dtype


def sync(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def turns(
    programs: dict[str, Callable[[], Any]], rounds: int, warmup: int = 1, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each run of each program. They take turns, so that a slow minute of the machine hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for i in range(warmup + rounds):
        for name, program in programs.items():
            sync(device)
            start = time.perf_counter()
            program()
            sync(device)
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return seconds


class Served:
    """A program in a process of its own, as its users start it: `python ARGS --serve NAME` runs `serve`."""

    def __init__(self, name: str, args: list[str], **environment: str):
        self.process = subprocess.Popen(
            [sys.executable, *args, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.ask("ready")

    def ask(self, what: str) -> Any:
        print(what, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(self.process.args[1:])} died, see its message above")
        return json.loads(answer)

    def close(self) -> Any:
        """What the program has to report; its process ends."""
        report = self.ask("report")
        self.process.stdin.close()
        self.process.wait()
        return report


def serve(make: Callable[[], Any], device: str = "cpu") -> None:
    """The other end: `make()` has step() and report(). Whatever the program prints goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    program = make()
    for line in sys.stdin:
        result: Any = None
        if line == "step\n":
            sync(device)
            start = time.perf_counter()
            program.step()
            sync(device)
            result = time.perf_counter() - start
        elif line == "report\n":
            result = program.report()
        print(json.dumps(result), file=answers, flush=True)


def serve_turns(programs: dict[str, Served], rounds: int, warmup: int) -> dict[str, list[float]]:
    """As `turns`, for programs in processes of their own."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for i in range(warmup + rounds):
        for name, program in programs.items():
            s = program.ask("step")
            if i >= warmup:
                seconds[name].append(s)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return seconds


median = statistics.median


def peak_mb(device: str) -> float:
    """Peak memory of this process: allocated on the GPU, or resident."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resident_mb("VmHWM")


def resident_mb(key: str) -> float:
    """VmHWM (the peak) or VmRSS of this process.

    Not by getrusage, whose peak starts at that of the parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(key))
    return int(line.split()[1]) / 1024


# The features that decide how fast a CPU multiplies matrices
CAPABILITIES = (
    "avx2",
    "avx512_f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "neon",
    "dot",
    "i8mm",
    "fp16_arith",
    "bf16",
    "sve",
    "sve_bf16",
)
HIDING = ("ATEN_CPU_CAPABILITY", ISA_VARIABLE, "MKL_ENABLE_INSTRUCTIONS")  # variables that hide some of it


def dtypes(device: str = "cpu") -> list[str]:
    """float32 and, where the device computes one, the 16-bit dtype that "auto" takes there."""
    return list(dict.fromkeys(("float32", choose_dtype("auto", torch.device(device)).name)))


def machine(device: str = "cpu") -> dict[str, Any]:
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else None
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    has = capabilities("cpu")
    return {
        "gpu": name,
        "cpu": models[0] if models else platform.machine(),
        "capabilities": [c for c in CAPABILITIES if has.get(c)],
        "environment": {name: os.environ[name] for name in HIDING if name in os.environ},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def load_module(path: Path, name: str) -> ModuleType:
    """The module in the file `path`, whatever else is called so."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def skipped(what: str, remedy: str) -> None:
    print(f"skipped: {what} ({remedy})", file=sys.stderr)


def shown(value: Any) -> Any:
    """An argument or setting as the JSON has it: of an absolute path the last component alone."""
    if not isinstance(value, (str, Path)):
        return value
    flag, equals, path = str(value).rpartition("=")
    return flag + equals + (Path(path).name if Path(path).is_absolute() else path)


def write(path: Path | None, settings: dict[str, Any], results: Any, device: str = "cpu") -> None:
    """Writes the JSON of a run, with the command that made it; nothing if no --out was given."""
    if not path:
        return
    command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *map(shown, sys.argv[1:])])
    settings = {key: shown(value) for key, value in settings.items()}
    content = {"command": command, "machine": machine(device), **settings, "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n")
