"""How fast a step could be, and where its time goes: FLOPs a token, the GPU's peak where it is known, a
profile of a few steps."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.profiler_util import FunctionEventAvg

from model import GPTConfig

# Dense FLOP/s in bfloat16 and in float16 of the vendor's data sheet, by the name that
# torch.cuda.get_device_name gives. A GPU that is not here gets no MFU.
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
}
PEAK_FLOAT16 = {**PEAK_FLOPS, "Tesla T4": 65e12}  # and of those that have no bfloat16


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Peak FLOP/s of `device` for matrix products in bfloat16 or float16; None where it is not known."""
    peaks = {"bfloat16": PEAK_FLOPS, "float16": PEAK_FLOAT16}.get(dtype, {})
    return peaks.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def flops_per_token(c: GPTConfig) -> float:
    """Forward and backward, of one training token: 6 for each weight of a matrix product, 12 L C T for
    attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B. A teacher's work is not counted: MFU
    is of the model's FLOPs.
    """
    return (
        6 * (12 * c.n_layer * c.n_embd**2 + c.padded_vocab * c.n_embd)
        + 12 * c.n_layer * c.n_embd * c.block_size
    )


class Profile:
    """If `on`: traces STEPS training steps after WARMUP others, and says where they spend their time.

    A step's phases are its `record_function` ranges (PHASES). Writes `folder`/trace.json (for
    chrome://tracing and ui.perfetto.dev) and prints a table through `say`.
    """

    WARMUP, STEPS = 3, 3
    PHASES = (
        *("data and labels", "trunk, forward", "head, loss and gradient", "trunk, backward"),
        "optimizer",
    )

    def __init__(self, on: bool, folder: Path, device: torch.device, say: Callable[[str], None]):
        self.on, self.folder, self.device, self.say = on, folder, device, say
        self.profiler: torch.profiler.profile | None = None
        self.done = 0

    def step(self) -> None:
        """To be called after each step."""
        if not self.on:
            return
        self.done += 1
        if self.done == 1:  # the first step makes what all later ones reuse
            plan = torch.profiler.schedule(wait=0, warmup=self.WARMUP - 1, active=self.STEPS, repeat=1)
            self.profiler = torch.profiler.profile(schedule=plan, on_trace_ready=self._report)
            self.profiler.start()
        elif self.profiler is not None:
            self.profiler.step()
        if self.done == self.WARMUP:
            self._wait()
            self.start = time.perf_counter()
        elif self.done == self.WARMUP + self.STEPS:
            self.profiler = None

    def close(self) -> None:
        """To be called at the end of a run: says so if it was too short to be profiled."""
        if self.profiler is not None:
            self.profiler.stop()
        if self.on and self.done < self.WARMUP + self.STEPS:
            self.say(
                f"no profile: it takes {self.WARMUP} steps to warm up and {self.STEPS} more, "
                f"this run had {self.done}"
            )

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _report(self, profiler: torch.profiler.profile) -> None:
        if self.done < self.WARMUP + self.STEPS:
            return
        self._wait()
        total = (time.perf_counter() - self.start) * 1e3
        self.folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.folder / "trace.json"))
        cuda = self.device.type == "cuda"
        events = {e.key: e for e in profiler.key_averages()}

        def line(name: str, ms: float, more: str = "") -> str:
            return f"  {name[:28]:<28} {ms / self.STEPS:9.1f} ms {ms / total:6.1%}{more}"

        def total_time(e: FunctionEventAvg) -> float:
            return (e.device_time_total if cuda else e.cpu_time_total) / 1e3

        def self_time(e: FunctionEventAvg) -> float:
            return (e.self_device_time_total if cuda else e.self_cpu_time_total) / 1e3

        phases = {name: total_time(events[name]) for name in self.PHASES if name in events}
        lines = [
            f"where a step goes, mean of {self.STEPS} "
            f"({total / self.STEPS:.1f} ms each, with the profiler's own cost)"
        ]
        lines += [line(name, ms) for name, ms in phases.items()]
        lines.append(line("other", total - sum(phases.values())))
        operations = [
            e for name, e in events.items() if name not in phases and not name.startswith("Profiler")
        ]
        for e in sorted(operations, key=self_time, reverse=True)[:10]:
            lines.append(line(e.key, self_time(e), f"  {e.count // self.STEPS} calls"))
        self.say("\n".join([*lines, f"  trace: {self.folder / 'trace.json'}"]))
