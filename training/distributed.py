"""This process among those of torchrun: rank, device, sums over all of them."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.config import Dtype
from common.device import DTYPES, Precision, choose_dtype, get_device
from common.errors import UserError

T = TypeVar("T")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # variables that it sets
LIFELINE = "NANOHEADS_LIFELINE"  # set: this process ends with its stdin, whose other end its table holds
STOPPING = b"\nstopping after this step, to save; Ctrl-C again stops at once and loses the steps since then\n"
Handler = Callable[[int, FrameType | None], Any] | int | None  # as the signal module knows them


def on_stop(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Handler]:
    """Lets `handler` answer the signals that ask a process to stop: Ctrl-C, SIGTERM, a closed terminal
    (SIGHUP). Returns the handlers that they had, by signal."""
    numbers = (signal.SIGINT, signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)]))
    # an ignored signal stays ignored: under nohup, or in the background of a script, the process is to go on
    before: dict[signal.Signals, Handler] = {
        number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, handler)
    return before


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers: randomness is a function of (seed, step, rank), so no generator
    state is saved."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out


class Processes:
    """This process among those of torchrun; without torchrun it is the only one.

    signal  the number of the signal that asked this process to stop; 0: none did
    rank    of this process, from 0
    world   how many processes there are
    main    whether its rank is 0
    """

    def __init__(self, device: str):
        """UserError if only some of torchrun's variables are there: left over, or set by hand."""
        self.signal = 0
        given = {name: os.environ[name] for name in TORCHRUN if name in os.environ}
        ranks = given.get("RANK", "0"), given.get("WORLD_SIZE", "1")
        self.rank, self.world = (int(n) if n.isdigit() else -1 for n in ranks)
        if (self.rank, self.world) != (0, 1) and (
            len(given) < len(TORCHRUN) or not 0 <= self.rank < self.world
        ):
            raise UserError(f"the environment has {given}, not all of {TORCHRUN} as torchrun sets them")
        self.device = get_device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1:
            # a day: the others wait while rank 0 prepares data or builds the label store
            try:
                backend = "nccl" if self.device.type == "cuda" else "gloo"
                dist.init_process_group(backend, timeout=timedelta(days=1))
            except RuntimeError as e:
                why = str(e).splitlines()[0]
                raise OSError(f"the processes of torchrun do not find each other ({why})") from e
        self.main = self.rank == 0
        if os.environ.pop(LIFELINE, ""):
            threading.Thread(target=self._end_with_table, daemon=True).start()

    def _end_with_table(self) -> None:
        """Lets this process save and end when the table that has started it is gone."""
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    def agreed_dtype(self, name: Dtype, begun: Dtype | None) -> Precision:
        """`choose_dtype` as rank 0 chooses by its device, for all processes."""
        chosen = choose_dtype(name, self.device, begun)
        number = torch.tensor(DTYPES.index(chosen.name) if self.main else 0, device=self.device)
        return chosen._replace(name=DTYPES[int(self.sum(number))])

    def sum(self, t: torch.Tensor) -> torch.Tensor:
        """`t`, summed over the processes in place."""
        if self.world > 1:
            with self.others_there():
                dist.all_reduce(t)
        return t

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Each of `numbers`, in float64, summed over the processes."""
        if self.world == 1:
            return list(numbers)
        return self.sum(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()

    @contextmanager
    def others_there(self) -> Iterator[None]:
        """A context for what waits for other processes. OSError if one has stopped, in place of the network's
        own errors."""
        try:
            yield
        except RuntimeError as e:
            network = isinstance(e, dist.DistError) or any(n in str(e) for n in ("gloo", "NCCL"))
            if self.world == 1 or not network:
                raise
            raise OSError(f"another process has stopped, see its message ({str(e).splitlines()[0]})") from e

    def parallel(self, model: nn.Module) -> nn.Module:
        """`model`, whose gradients are then means over the processes; itself for a single one."""
        if self.world == 1:
            return model
        index = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, index, broadcast_buffers=False, gradient_as_bucket_view=True)

    def no_sync(self, model: nn.Module, skip: bool) -> AbstractContextManager:
        """A context for one forward and backward of a `parallel` model. If `skip`, its gradients stay in
        this process, which sends them with those of a later pass."""
        return model.no_sync() if skip and isinstance(model, DistributedDataParallel) else nullcontext()

    def stop_at_signals(self) -> None:
        """From now on a signal is noted for the loop, which saves and stops; a second Ctrl-C interrupts."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number
            with suppress(OSError):  # after SIGHUP there is no terminal
                os.write(2, STOPPING)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        on_stop(note)

    def stopped(self) -> bool:
        """Whether a signal asked any process to stop."""
        return self.sums([self.signal]) != [0]

    def print0(self, text: str) -> None:
        """Prints `text`, in the first process."""
        if not self.main:
            return
        try:
            print(text, flush=True)
        except OSError:  # the terminal, or what read the lines, is gone: save and stop, as at its signal
            self.signal = self.signal or getattr(signal, "SIGHUP", signal.SIGTERM)
            # further lines go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def barrier(self) -> None:
        """Returns when all processes are here. On a GPU a sum alone does not: its value has to be read."""
        self.sum(torch.zeros((), device=self.device)).item()

    def rank0_first(self, work: Callable[[], T]) -> T:
        """`work()` on rank 0, then on the others, which then find it done."""
        if self.main:
            out = work()
        self.barrier()
        return out if self.main else work()

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()
