"""How fast a step could be, and where its time goes: FLOPs a token, the GPU's peak where it is known, a profile of a few steps."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

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
    """Forward and backward, of one training token: 6 for each weight of a matrix product, 12 L C T for attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B. A teacher's work is not counted: MFU is of the model's FLOPs.
    """
    return (
        6 * (12 * c.n_layer * c.n_embd**2 + c.padded_vocab * c.n_embd)
        + 12 * c.n_layer * c.n_embd * c.block_size
    )


class Profile:
    """If `on`: times the phases of a training step, and traces its operations, for STEPS steps after WARMUP others; else does nothing.

    Writes `folder`/trace.json (chrome://tracing, ui.perfetto.dev) and prints a table through `say`. On a GPU each phase waits for the
    device, so that its time is its own.
    """

    WARMUP, STEPS = 3, 3

    def __init__(self, on: bool, folder: Path, device: torch.device, say: Callable[[str], None]):
        self.on, self.folder, self.device, self.say = on, folder, device, say
        self.seconds: dict[str, float] = defaultdict(float)
        self.done, self.profiler = 0, None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.profiler is None:
            yield
            return
        self._wait()
        start = time.perf_counter()
        with torch.profiler.record_function(name):
            yield
            self._wait()
        self.seconds[name] += time.perf_counter() - start

    def step(self) -> None:
        """To be called after each step."""
        if not self.on:
            return
        self.done += 1
        if self.done == self.WARMUP:
            self._wait()
            self.profiler = torch.profiler.profile()
            self.profiler.start()
            self.start = time.perf_counter()
        elif self.done == self.WARMUP + self.STEPS:
            self._wait()
            total = time.perf_counter() - self.start
            self.profiler.stop()
            self._report(total)
            self.profiler = None

    def close(self) -> None:
        """To be called at the end of a run: says so if it was too short to be profiled."""
        if self.on and self.done < self.WARMUP + self.STEPS:
            self.say(
                f"no profile: it takes {self.WARMUP} steps to warm up and {self.STEPS} more, this run had {self.done}"
            )

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _report(self, total: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(self.folder / "trace.json"))
        rows = [*self.seconds.items(), ("other", total - sum(self.seconds.values()))]
        lines = [
            f"where a step goes, mean of {self.STEPS} ({total / self.STEPS * 1e3:.1f} ms each, with the profiler's own cost)"
        ]
        lines += [f"  {name:<28} {s / self.STEPS * 1e3:9.1f} ms {s / total:6.1%}" for name, s in rows]
        cuda = self.device.type == "cuda"
        own = lambda e: (e.self_device_time_total if cuda else e.self_cpu_time_total) / 1e6
        events = [e for e in self.profiler.key_averages() if e.key not in self.seconds]
        lines += [
            f"  {e.key[:28]:<28} {own(e) / self.STEPS * 1e3:9.1f} ms {own(e) / total:6.1%}  {e.count // self.STEPS} calls"
            for e in sorted(events, key=own, reverse=True)[:10]
        ]
        self.say("\n".join([*lines, f"  trace: {self.folder / 'trace.json'}"]))
