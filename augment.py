"""A teacher proposes further next tokens: multi-label targets, stored once beside the token file.

    python augment.py config/sig_gpt.py config/tiny.py

builds the store that train.py with the same words would use, and would build. It chooses m positions in each
training window. At each, the teacher's k most probable tokens are candidates, and those whose perplexity is
under a threshold stay; or k tokens are drawn from its distribution (proposals = "drawn"). The true token
stays, unless `keep_true` is False. Source: Shamula et al. 2024, sec. 2.6 and fig. 3.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common import manifest
from common.config import cli, read
from common.device import autocast, choose_dtype, get_dtype
from common.errors import UserError
from common.files import lock_of, locked, replacing
from common.log import progress_bar
from config.defaults import TrainConfig
from data.batches import Windows
from data.labels import FILE, Proposals, choose_positions, record_dtype, store_folder
from data.open import prepared
from data.tokens import TokenFile, open_tokens
from training.distributed import Processes
from training.labels import open_labels
from training.run import find_run, load_model
from training.start import refuse_other_tokens
from training.text import with_task_defaults

BATCH = 16  # windows that the teacher reads at a time
DRAWS = 0x64726177  # a stream of random numbers of its own, beside that of the positions


class Teacher:
    """A language model that proposes: a run.

    UserError if its tokenizer is not that of the student's `tokens`, or its block is shorter.
    """

    def __init__(self, c: TrainConfig, tokens: TokenFile, device: torch.device | str = "cpu"):
        dtype = get_dtype(c.dtype)
        self.model, run = load_model(find_run(c.teacher), device=device, dtype=dtype)
        student = tokens.info["tokenizer"], tokens.info["fingerprint"]
        refuse_other_tokens("teacher", c.teacher, run.config, *student)
        reads = self.model.trunk.context if self.model.trunk.forwards else 0  # from left to right
        if reads < c.block_size:
            raise UserError(
                f"the teacher {c.teacher!r} reads at most {reads} tokens, the student's windows have "
                f"block_size = {c.block_size}: choose another teacher, or a shorter block"
            )
        self.device, self.dtype, self.draws = device, c.dtype, self.model.head.draws(8, 0, dtype)


@torch.no_grad()
def propose(teacher: Teacher, indices: np.ndarray, x: Tensor, y: Tensor, c: TrainConfig) -> Proposals:
    """The teacher's proposals for the windows `indices` with inputs x and next tokens y (B, T), by the keys
    SETTINGS of `c`. It holds the log p of a few hundred positions at a time."""
    positions = choose_positions(indices, c)
    x, y = x.to(teacher.device), y.to(teacher.device)
    at = torch.from_numpy(positions.astype(np.int64)).to(teacher.device)
    truth, k = y.gather(1, at).flatten(), min(c.candidates, teacher.model.trunk.config.vocab_size)
    u = None
    if c.proposals == "drawn":  # a pure function of (seed, window)
        rngs = [np.random.default_rng((c.seed, window, DRAWS)) for window in indices.tolist()]
        numbers = np.concatenate([rng.random((positions.shape[1], c.candidates)) for rng in rngs])
        u = torch.from_numpy(numbers).to(teacher.device)
    with autocast(teacher.device, teacher.dtype):
        hidden = teacher.model.trunk(x)  # (B, T, C)
        chosen = hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[2])).flatten(0, 1)
        lp, ids = torch.empty(len(chosen), k, device=at.device), at.new_empty(len(chosen), k)
        for rows, log_p in teacher.model.head.log_prob_blocks(chosen, teacher.draws):
            lp[rows], ids[rows] = (
                log_p.topk(k) if u is None else draw_candidates(log_p, truth[rows], u[rows], k)
            )
    lp, ids = (t.view(*positions.shape, k) for t in (lp, ids))
    if c.ppl_threshold:
        # A candidate leaves its left context as it is: the prefix's NLL is known, the candidate adds -log p.
        # Position i has i tokens of its window predicted before it (the first one has no context).
        with autocast(teacher.device, teacher.dtype):
            log_p = teacher.model.head.log_p_of(hidden.flatten(0, 1), teacher.draws, y.flatten())
        nll = -log_p.view(y.shape)
        before = F.pad(nll.cumsum(1)[:, :-1], (1, 0))  # (B, T): sum over the targets before position i
        ppl = ((before.gather(1, at)[:, :, None] - lp) / (at[:, :, None] + 1)).exp()
        ids = ids.masked_fill(ppl > c.ppl_threshold, -1)
    ids = ids.masked_fill(lp.isneginf(), -1)  # not drawn, or ruled out by a teacher with exact zeros
    return Proposals(positions, ids.cpu().numpy(), lp.exp().half().cpu().numpy())


def draw_candidates(log_p: Tensor, truth: Tensor, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Draws from each row of a distribution: log of their weights (N, k), and ids (N, k). What is drawn twice
    comes once; where there are fewer than k, the rest is -inf.

    log_p (N, V), the true tokens (N,), u (N, draws) uniform in [0, 1).

    The n draws are with replacement, from p without the true token t, whose label is known. A token j that
    comes c_j times has the weight y_j = (1 - p_t) c_j / n, whose mean is p_j. So the labels, with y_t = 1,
    are on average those of all V tokens at once: without bias, where the k likeliest tokens lose the mass of
    the tail. The weights always add up to 1 - p_t; if t could be drawn, their sum would be random. So
    softmax's target y / sum y = y / (2 - p_t) has the right mean, too, and so have the gradients of both
    losses, which are linear in the target. float16 rounds a weight, as a probability, by up to 1 in 2,048.
    Source: Anshumann et al. 2025, arXiv 2503.16870, whose draws are of all tokens.
    """
    p = log_p.exp().scatter_(1, truth[:, None], 0)
    cumulated = p.cumsum(1, dtype=torch.float64)  # float32 would lose rare tokens beside the sum
    mass = cumulated[:, -1:]  # 1 - p_t
    ids = torch.searchsorted(cumulated, u * mass, right=True).clamp(max=p.shape[1] - 1)  # V where mass is 0
    counts, ids = torch.zeros_like(p).scatter_add_(1, ids, torch.ones_like(ids, dtype=p.dtype)).topk(k)
    return (counts * (mass / u.shape[1])).log(), ids


# -----------------------------------------------------------------------------
# The store


def build_store(tokens: TokenFile, c: TrainConfig, made_of: dict[str, Any], device: torch.device) -> Path:
    """The folder of the labels of the identity `made_of`, made where there is none.

    Memory is that of one batch of windows. If another process is building the store, waits for that.
    """
    folder = store_folder(tokens, made_of)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(folder), timeout=0))
        except filelock.Timeout:
            print(f"another process is building {folder}: waiting for it")
            stack.enter_context(locked(lock_of(folder)))
        if not (folder / manifest.NAME).is_file():  # else it was finished meanwhile
            teacher, windows = Teacher(c, tokens, device), Windows(tokens, c.block_size)
            record = record_dtype(tokens.info["vocab_size"], made_of["m"], made_of["k"])
            print(f"building {folder}, {len(windows) * record.itemsize / 1e6:,.1f} MB")
            total = len(windows) * c.block_size
            bar = progress_bar(total=total, unit="tok", unit_scale=True, desc=f"labels by {c.teacher}")
            with replacing(folder / FILE) as file, bar:
                for start in range(0, len(windows), BATCH):
                    indices = np.arange(start, min(start + BATCH, len(windows)))
                    out = np.zeros(len(indices), record)
                    proposed = propose(teacher, indices, *windows.get(indices), c)
                    out["positions"], out["values"] = proposed.positions, proposed.values
                    nothing = np.iinfo(record["ids"].base).max
                    out["ids"] = np.where(proposed.ids < 0, nothing, proposed.ids)
                    file.write(out.tobytes())
                    bar.update(len(indices) * c.block_size)
            manifest.write_manifest(folder, {**made_of, "teacher_name": c.teacher}, [FILE])
    return folder


def main(argv: list[str]) -> int:
    """Builds the label store of a training configuration."""
    config = with_task_defaults(read(TrainConfig, argv, __doc__))
    if config.labels == "true":
        raise UserError("labels = 'true': this configuration has no proposals to store")
    procs = Processes(config.device)
    config = replace(config, dtype=choose_dtype(config.dtype, procs.device).name)
    data = Path(config.data or prepared(config.dataset, config.tokenizer, config.source))
    store, _ = open_labels(config, open_tokens(data / "train.bin"), procs)
    print(f"{store.folder}: {len(store.records):,} windows, {store.records.nbytes / 1e6:,.1f} MB")
    return 0


if __name__ == "__main__":
    cli(main)
