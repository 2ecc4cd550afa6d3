"""What the benchmarks share: their arguments, programs that take turns, where they ran, their JSON."""

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from common.device import ISA_VARIABLE, capabilities, choose_dtype
from model import GPTConfig


def arguments(doc: str, rounds: int) -> argparse.ArgumentParser:
    """The arguments that benchmarks share."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=rounds, help="timed runs of each program")
    p.add_argument("--out", type=Path, help="the JSON to write")
    return p


def timed(program: Callable[[], Any], device: str) -> float:
    """Seconds of one run."""
    wait = partial(torch.cuda.synchronize, device) if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    program()
    wait()
    return time.perf_counter() - start


def turns(programs: dict[Any, Callable[[], float]], rounds: int, warmup: int = 1) -> dict[Any, float]:
    """Median of the seconds that each program returns. They take turns, so that a slow minute of the machine
    hits all."""
    seconds: dict[Any, list[float]] = {name: [] for name in programs}
    for _ in range(warmup + rounds):
        for name, program in programs.items():
            seconds[name].append(program())
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: median(runs[warmup:]) for name, runs in seconds.items()}


class Served:
    """A program in a process of its own, as its users start it: `python ARGS --serve NAME` runs `serve`."""

    def __init__(self, name: str, args: list[str], **environment: str):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        command = [sys.executable, *args, "--serve", name]
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)
        self.ask("ready")

    def ask(self, request: str = "step") -> Any:
        """The seconds of a step, by the program's own clock; or its "report", after which it ends."""
        print(request, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())  # empty if it died, with a message above
        if request == "report":
            self.process.wait()
        return answer


def serve(make: Callable[[], Any], device: str = "cpu") -> None:
    """The other end: `make()` has step() and report(), to which this adds the median CPU time of a step, of
    all threads. Whatever the program prints goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    program, cpu, seconds = make(), [], 0.0
    for line in sys.stdin:
        if line == "report\n":
            break
        if line == "step\n":
            start = time.process_time()
            seconds = timed(program.step, device)
            cpu.append(time.process_time() - start)
        print(seconds, file=answers, flush=True)
    print(json.dumps({**program.report(), "cpu_seconds": median(cpu)}), file=answers, flush=True)


def memory_mb(device: str, peak: bool = True) -> float:
    """Memory of this process, at its peak or now: allocated on the GPU, or resident.

    Not by getrusage, whose peak starts at that of the parent process.
    """
    if device.startswith("cuda"):
        cuda = torch.cuda
        return (cuda.max_memory_allocated if peak else cuda.memory_allocated)(device) / 2**20
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s*(\d+)", status)[1]) / 1024


HIDING = ("ATEN_CPU_CAPABILITY", ISA_VARIABLE, "MKL_ENABLE_INSTRUCTIONS")  # variables that hide features


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
        "capabilities": [name for name, there in has.items() if there is True],
        "environment": {name: os.environ[name] for name in HIDING if name in os.environ},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def nanogpt(checkout: Path, c: GPTConfig) -> torch.nn.Module:
    """The model of our size by model.py of a checkout of karpathy/nanoGPT; our file has the same name."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    size = dict(block_size=c.block_size, n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd)
    return module.GPT(module.GPTConfig(vocab_size=c.padded_vocab, dropout=0.0, bias=True, **size))


def without_places(value: Any) -> Any:
    """An argument or setting as the JSON has it: an absolute path becomes its last component."""
    flag, equals, path = str(value).rpartition("=")
    named = flag + equals + (Path(path).name if Path(path).is_absolute() else path)
    return named if isinstance(value, (str, Path)) else value


def write(
    args: argparse.Namespace, settings: list[str], results: Any, device: str = "cpu", **more: Any
) -> None:
    """Writes --out, the JSON of a run: its command, machine, some of its settings and its results."""
    if not args.out:
        return
    command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *map(without_places, sys.argv[1:])])
    content = {"command": command, "machine": machine(device)}
    content |= {key: without_places(getattr(args, key)) for key in settings} | more
    args.out.write_text(json.dumps(content | {"results": results}, indent=1) + "\n")
