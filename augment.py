"""A teacher GPT-2 proposes further next tokens: multi-label targets, stored once beside the token file.

    python augment.py config/sig_gpt.py config/tiny.py

builds the store that train.py with the same words would use. It chooses m positions in each training window.
At each, the teacher's k most probable tokens are candidates, and those whose perplexity is under a threshold
stay. The true token stays, unless `keep_true` is False. Source: Shamula et al. 2024, sec. 2.6 and fig. 3.
"""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import filelock
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.config import cli, read
from common.device import autocast, choose_dtype, get_device, get_dtype
from common.errors import UserError
from common.files import lock_of, locked, replacing, write_json
from common.log import progress_bar
from config.defaults import TrainConfig
from data.batches import Windows
from data.corpus import prepared
from data.labels import (
    LabelSettings,
    LabelStore,
    Proposals,
    choose_positions,
    make_targets,
    record_dtype,
    store_path,
)
from data.tokens import TokenFile, open_tokens
from heads import Head, Targets, find_head
from model import Trunk, sketch
from training.checkpoint import weights_digest
from training.resume import refuse_other_tokens
from training.run import load_model
from training.task import settled


class Teacher:
    """A language model that proposes: one of our runs, or a GPT-2 of another program (training/gpt2.py).

    UserError if its tokenizer is not the corpus', or its block is shorter than the student's.
    """

    def __init__(
        self,
        name: str,
        tokenizer: str,
        fingerprint: str,
        block_size: int,
        device: torch.device | str = "cpu",
        dtype: str = "float32",
    ):
        self.model, ckpt = load_model(name, hub=True)
        self.weights_sha256 = None if ckpt.foreign else weights_digest(ckpt.path)
        refuse_other_tokens("teacher", name, ckpt.config, tokenizer, fingerprint)
        reads = self.model.trunk.context if self.model.trunk.forwards else 0  # from left to right
        if reads < block_size:
            raise UserError(
                f"the teacher {name!r} reads at most {reads} tokens, the student's windows have "
                f"block_size = {block_size}: choose another teacher, or a shorter block"
            )
        self.model.eval().requires_grad_(False).to(device)
        self.name, self.device, self.dtype = name, device, dtype
        self.draws = self.model.head.draws(8, 0, get_dtype(dtype))
        self.fingerprint = self._fingerprint()
        self.model.lower(get_dtype(dtype))

    def _fingerprint(self) -> str:
        """SHA-256 of the weights and of what else decides the probabilities: size, head and gain."""
        head = self.model.head.head
        settings = sorted((k, v) for k, v in vars(head).items() if isinstance(v, (int, float, str)))
        gain = self.model.head.fixed_gain  # a learned one is among the weights
        about = (self.model.trunk.config, type(head).__name__, settings)
        digest = hashlib.sha256((repr(about) + f" gain {gain}" * (gain != 1)).encode())
        for name, p in sorted(self.model.state().items()):
            digest.update(name.encode())
            digest.update(p.cpu().numpy().data)
        return digest.hexdigest()


@torch.no_grad()
def propose(
    teacher: Teacher, indices: np.ndarray, x: Tensor, y: Tensor, settings: LabelSettings
) -> Proposals:
    """The teacher's proposals for the windows `indices` with inputs x and next tokens y (B, T)."""
    positions = choose_positions(indices, x.shape[1], settings)
    x, y = x.to(teacher.device), y.to(teacher.device)
    at = torch.from_numpy(positions.astype(np.int64)).to(teacher.device)
    k = min(settings.candidates, teacher.model.trunk.config.vocab_size)
    with autocast(teacher.device, teacher.dtype):
        hidden = teacher.model.trunk(x)  # (B, T, C)
        chosen = hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[2])).flatten(0, 1)
        top = [lp.topk(k) for _, lp in teacher.model.head.log_prob_blocks(chosen, teacher.draws)]
    lp, ids = (torch.cat(t).view(*positions.shape, k) for t in zip(*top))
    if settings.ppl_threshold:
        # A candidate leaves its left context as it is: the prefix's NLL is known, the candidate adds -log p.
        # Position i has i tokens of its window predicted before it (the first one has no context).
        with autocast(teacher.device, teacher.dtype):
            log_p = teacher.model.head.log_p_of(hidden.flatten(0, 1), teacher.draws, y.flatten())
        nll = -log_p.view(y.shape)
        before = F.pad(nll.cumsum(1)[:, :-1], (1, 0))  # (B, T): sum over the targets before position i
        ppl = ((before.gather(1, at)[:, :, None] - lp) / (at[:, :, None] + 1)).exp()
        ids = ids.masked_fill(ppl > settings.ppl_threshold, -1)
    ids = ids.masked_fill(lp.isneginf(), -1)  # of a teacher with exact zeros: no proposals
    # float16 here, not in the store, so that stored and online labels are the same
    return Proposals(positions, ids.cpu().numpy(), lp.exp().half().cpu().numpy())


def identity(tokens: TokenFile, teacher: Teacher, block_size: int, settings: LabelSettings) -> dict:
    """Everything the proposals depend on. Equal identities, equal labels."""
    return {
        "corpus": tokens.info["sha256"],
        "tokens": len(tokens.ids),
        "tokenizer": tokens.info["fingerprint"],
        "block_size": block_size,
        "teacher": teacher.fingerprint,
        "dtype": teacher.dtype,
        **asdict(settings),
        **({"zeros": False} if teacher.model.head.head.sparse else {}),  # an earlier version proposed these
    }


class Online:
    """The same proposals, computed at each step by the teacher."""

    def __init__(self, teacher: Teacher, settings: LabelSettings):
        self.teacher, self.settings = teacher, settings

    def proposals(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Proposals:
        return propose(self.teacher, indices, x, y, self.settings)


def build_store(
    tokens: TokenFile, teacher: Teacher, block_size: int, settings: LabelSettings, batch: int = 16
) -> LabelStore:
    """Opens the store of these settings, building it first if it is not there.

    Memory is that of one batch of windows. If another process is building the store, waits for that.
    """
    want = identity(tokens, teacher, block_size, settings)
    path, V = store_path(tokens, want), tokens.info["vocab_size"]
    meta = path.with_suffix(".json")
    if not (meta.is_file() and path.is_file()):
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(lock_of(path), timeout=0))
            except filelock.Timeout:
                print(f"another process is building {path}: waiting for it")
                stack.enter_context(locked(lock_of(path)))
            if not (meta.is_file() and path.is_file()):  # else it was finished meanwhile
                windows = Windows(tokens, block_size)
                m, k = settings.count(block_size), min(settings.candidates, V)
                sha256 = _build(path, teacher, windows, settings, record_dtype(V, m, k), batch)
                about = {"teacher_name": teacher.name, "windows": len(windows), "m": m, "k": k}
                write_json(meta, want | about | {"file_sha256": sha256})
    return LabelStore(path, want, V)


def _build(
    path: Path, teacher: Teacher, windows: Windows, settings: LabelSettings, record: np.dtype, batch: int
) -> str:
    """Writes the records of all windows to `path`. The SHA-256 of the file."""
    T, sha256 = windows.block_size, hashlib.sha256()
    print(f"building {path}, {len(windows) * record.itemsize / 1e6:,.1f} MB")
    bar = progress_bar(total=len(windows) * T, unit="tok", unit_scale=True, desc=f"labels by {teacher.name}")
    with replacing(path) as file, bar:
        for start in range(0, len(windows), batch):
            indices = np.arange(start, min(start + batch, len(windows)))
            out = np.zeros(len(indices), record)
            proposed = propose(teacher, indices, *windows.get(indices), settings)
            out["positions"], out["probs"] = proposed.positions, proposed.probs
            nothing = np.iinfo(record["ids"].base).max
            out["ids"] = np.where(proposed.ids < 0, nothing, proposed.ids)
            raw = out.tobytes()
            file.write(raw)
            sha256.update(raw)
            bar.update(len(indices) * T)
    return sha256.hexdigest()


def label_settings(c: TrainConfig) -> LabelSettings:
    return LabelSettings(c.candidates, c.positions, c.ppl_threshold, c.seed)


class Labels:
    """What the loss is trained towards: the head's own targets, or a teacher's proposals as labels.

    `online`: the teacher computes them at each step, on the device. `first(work)` runs work on one of several
    processes before the others.
    """

    def __init__(
        self,
        config: TrainConfig,
        tokens: TokenFile,
        device: torch.device,
        head: Head | None = None,
        first: Callable[[Callable[[], LabelStore]], LabelStore] = lambda work: work(),
    ):
        self.config, self.head = config, head
        self.source: LabelStore | Online | None = None
        self.teacher, self.teacher_weights = None, None  # what the labels depend on, as digests
        if config.labels != "true":
            if type(sketch(vars(config))).arrange is not Trunk.arrange:
                raise UserError(
                    f"labels = {config.labels!r}: trunk = {config.trunk!r} does not predict the next token"
                )
            if not find_head(config.head).multi_label:
                raise UserError(
                    f"labels = {config.labels!r}: the head {config.head!r} takes the true token alone"
                )
            info, block = tokens.info, config.block_size
            words = info["tokenizer"], info["fingerprint"]
            teacher = Teacher(config.teacher, *words, block, device, config.dtype)
            self.teacher, self.teacher_weights = teacher.fingerprint, teacher.weights_sha256
            if config.label_store:
                self.source = first(lambda: build_store(tokens, teacher, block, label_settings(config)))
            else:
                self.source = Online(teacher, label_settings(config))
        self.online = isinstance(self.source, Online)

    def targets(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Targets:
        """Targets of the windows `indices` (B,) with inputs x and next tokens y (B, T)."""
        if self.source is None:
            assert self.head is not None
            return self.head.targets(x, y)
        c, proposals = self.config, self.source.proposals(indices, x, y)
        return make_targets(y, proposals, c.labels == "soft", c.keep_true)


def main(argv: list[str]) -> int:
    """Builds the label store of a training configuration."""
    config = settled(read(TrainConfig, argv, __doc__))
    if config.labels == "true":
        raise UserError("labels = 'true': this configuration has no proposals to store")
    device = get_device(config.device)
    config = replace(config, label_store=True, dtype=choose_dtype(config.dtype, device).name)
    tokens = open_tokens(prepared(config.dataset, config.tokenizer, config.source) / "train.bin")
    store = Labels(config, tokens, device).source
    assert isinstance(store, LabelStore)
    print(f"{store.path}: {len(store.records):,} windows, {store.path.stat().st_size / 1e6:,.1f} MB")
    return 0


if __name__ == "__main__":
    cli(main)
