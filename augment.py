"""A teacher GPT-2 proposes further next tokens: sparse multi-label targets, stored once beside the token file or computed online.

    python augment.py config/sig_gpt.py [more configs] [--key=value ...]     builds the store that train.py with the same words would use

Of each training window, m positions are chosen; at each, the teacher's k most probable tokens are candidates, and those whose
perplexity is under a threshold stay. The true token is always kept. Source: Shamula et al. 2024, sec. 2.6 and fig. 3.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import hashlib
import json
import math
import os
import shutil
import zlib
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import filelock
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data.batches import Windows
from data.tokens import TokenFile, open_tokens
from heads import Targets, make_head
from model import LanguageModel
from runtime.checkpoint import is_run, load_model, weights_digest
from runtime.configurator import cli, help_text, wants_help
from runtime.device import autocast, get_dtype
from runtime.errors import UserError
from runtime.files import lock_of, locked, read_json, write_json
from runtime.gpt2 import from_gpt2


@dataclass(frozen=True)
class Settings:
    """What decides the proposals (and so belongs to a store's identity)."""

    candidates: int = 50  # k: tokens proposed at a position, the teacher's most probable
    positions: float = 0.5  # m: positions of each window; a share below or at 1, a number above
    ppl_threshold: float = 0.0  # proposals of a higher perplexity are dropped; 0: none is
    ppl_form: str = (
        "prefix"  # perplexity of the window up to the candidate, or of the "full" window with it put in
    )
    seed: int = 1337  # of the choice of positions

    def __post_init__(self):
        if self.candidates < 1:
            raise UserError(f"candidates = {self.candidates}: the teacher must propose at least 1 token")
        if not 0 < self.positions < math.inf or (
            self.positions > 1 and self.positions != int(self.positions)
        ):
            raise UserError(
                f"positions = {self.positions}: give a share in (0, 1] or a whole number of positions"
            )
        if not self.ppl_threshold >= 0:
            raise UserError(f"ppl_threshold = {self.ppl_threshold}: must be positive, or 0 for none")
        if self.ppl_form not in ("prefix", "full"):
            raise UserError(f"ppl_form = {self.ppl_form!r}: use 'prefix' or 'full'")

    def count(self, block_size: int) -> int:
        """m for windows of `block_size`."""
        m = round(self.positions * block_size) if self.positions <= 1 else int(self.positions)
        if not 1 <= m <= block_size:
            raise UserError(
                f"positions = {self.positions} means {m} of block_size = {block_size}: must lie between 1 and {block_size}"
            )
        return m


class Proposals(NamedTuple):
    """For B windows: `positions` (B, m), ascending; `ids` (B, m, k), -1 where dropped, most probable first; `probs` (B, m, k), the teacher's."""

    positions: np.ndarray
    ids: np.ndarray
    probs: np.ndarray


class Teacher:
    """A language model that proposes: a hub name or transformers folder of a GPT2LMHeadModel, or one of our checkpoints.

    ValueError if its vocabulary is not the corpus's or its block is shorter than the student's.
    """

    def __init__(
        self,
        name: str,
        tokenizer: str,
        fingerprint: str,
        vocab_size: int,
        block_size: int,
        device: torch.device | str = "cpu",
        dtype: str = "float32",
    ):
        self.weights_sha256 = None  # of one of our runs
        if is_run(name):
            self.model, ckpt = load_model(name)
            self.weights_sha256 = weights_digest(ckpt.path)
            has = (ckpt.config["tokenizer"], ckpt.config["tokenizer_fingerprint"], ckpt.config["vocab_size"])
        else:
            trunk = from_gpt2(name)
            self.model = LanguageModel(trunk, make_head("softmax", trunk.config.vocab_size, trunk.wte.weight))
            V = (
                trunk.config.vocab_size
            )  # a transformers folder names no tokenizer that could be compared; GPT-2's size means GPT-2's
            has = ("gpt2", "gpt2", V) if V == 50257 else (tokenizer, fingerprint, V)
        if has != (tokenizer, fingerprint, vocab_size):
            raise UserError(
                f"the teacher {name!r} has another vocabulary ({has[0]}, {has[2]} tokens) than the corpus ({tokenizer}, {vocab_size} tokens): "
                f"choose a teacher trained on the same token files, or prepare the corpus with the teacher's tokenizer"
            )
        if self.model.trunk.config.block_size < block_size:
            raise UserError(
                f"the teacher {name!r} reads at most {self.model.trunk.config.block_size} tokens, the student's windows have block_size = {block_size}"
            )
        self.model.eval().requires_grad_(False).to(device)
        self.name, self.device, self.dtype = name, device, dtype
        self.draws = self.model.head.draws(8, 0, get_dtype(dtype))
        self.fingerprint = self._fingerprint()
        self.model.trunk.lower(get_dtype(dtype))

    def _fingerprint(self) -> str:
        """SHA-256 of the weights and of what else decides the probabilities: size and head."""
        head = self.model.head.head
        digest = hashlib.sha256(
            repr(
                (
                    self.model.trunk.config,
                    type(head).__name__,
                    sorted((k, v) for k, v in vars(head).items() if isinstance(v, (int, float, str))),
                )
            ).encode()
        )
        for name, p in sorted(self.model.state().items()):
            digest.update(name.encode())
            digest.update(p.cpu().numpy().data)
        return digest.hexdigest()

    def autocast(self) -> AbstractContextManager:
        return autocast(self.device, self.dtype)

    def hidden(self, tokens: Tensor) -> Tensor:
        with self.autocast():
            return self.model.trunk(tokens)

    def nll(self, hidden: Tensor, target: Tensor) -> Tensor:
        """-log p of `target` (B, T) after `hidden` (B, T, C)."""
        t = target.flatten()
        with self.autocast():
            parts = [
                lp.gather(1, t[rows, None]).squeeze(1)
                for rows, lp in self.model.head.log_prob_blocks(hidden.flatten(0, 1), self.draws)
            ]
        return -torch.cat(parts).view(target.shape)


def choose_positions(indices: np.ndarray, block_size: int, settings: Settings) -> np.ndarray:
    """The m augmented positions of the windows `indices` (B,): (B, m), a pure function of (seed, window)."""
    m = settings.count(block_size)
    return np.stack(
        [
            np.sort(np.random.default_rng((settings.seed, int(w))).choice(block_size, m, replace=False))
            for w in indices
        ]
    ).astype(np.uint16)


@torch.no_grad()
def propose(teacher: Teacher, indices: np.ndarray, x: Tensor, y: Tensor, settings: Settings) -> Proposals:
    """The teacher's proposals for the windows `indices` with inputs x and next tokens y (B, T)."""
    positions = choose_positions(indices, x.shape[1], settings)
    x, y = x.to(teacher.device), y.to(teacher.device)
    at = torch.from_numpy(positions.astype(np.int64)).to(teacher.device)
    hidden = teacher.hidden(x)  # (B, T, C)
    chosen = hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[2])).flatten(0, 1)
    k = min(settings.candidates, teacher.model.trunk.config.vocab_size)
    with teacher.autocast():
        top = [lp.topk(k) for _, lp in teacher.model.head.log_prob_blocks(chosen, teacher.draws)]
    lp, ids = (torch.cat(t).view(*positions.shape, k) for t in zip(*top))
    if settings.ppl_threshold and settings.ppl_form == "prefix":
        # A candidate leaves its left context as it is: the prefix's NLL is already known, the candidate adds -log p.
        # Position i has i tokens of its window predicted before it (the first one has no context).
        nll = teacher.nll(hidden, y)
        before = nll.cumsum(1) - nll  # (B, T): sum over the targets before position i
        ppl = ((before.gather(1, at)[:, :, None] - lp) / (at[:, :, None] + 1)).exp()
        ids = ids.masked_fill(ppl > settings.ppl_threshold, -1)
    elif settings.ppl_threshold:
        ids = ids.masked_fill(_full_perplexity(teacher, x, y, at, ids) > settings.ppl_threshold, -1)
    # float16 here, not in the store, so that stored and online labels are the same
    return Proposals(positions, ids.cpu().numpy(), lp.exp().half().cpu().numpy())


def _full_perplexity(
    teacher: Teacher, x: Tensor, y: Tensor, at: Tensor, ids: Tensor, batch: int = 32
) -> Tensor:
    """Perplexity of each whole window with one candidate put in: (B, m, k). One forward pass a candidate."""
    B, m, k = ids.shape
    out = torch.empty(B * m * k, device=x.device)
    flat = ids.flatten()
    for start in range(0, len(out), batch):
        n = torch.arange(start, min(start + batch, len(out)), device=x.device)
        b, i = n // (m * k), at.flatten()[n // k]
        text = torch.cat((x[b], y[b, -1:]), 1)  # (batch, T + 1)
        text[torch.arange(len(n)), i + 1] = flat[n]
        out[n] = teacher.nll(teacher.hidden(text[:, :-1]), text[:, 1:]).mean(1).exp()
    return out.view(B, m, k)


def make_targets(
    y: Tensor, proposals: Proposals, soft: bool, weight: float = 1.0, keep_true: bool = True
) -> Targets:
    """Proposals -> Targets of B * T rows, K = 1 + k: the true token in column 0 with value 1, then the candidates.

    A candidate's value is `weight`, times the teacher's probability if `soft`. keep_true = False is the published labelling: candidates
    replace the true token, and the positions that were not chosen have no positive at all.
    """
    B, T = y.shape
    k = proposals.ids.shape[2]
    # in numpy: train.py's loader calls this in a thread, where torch would start a second team of threads and slow down the model's for good
    ids, values, truth = np.full((B, T, 1 + k), -1), np.zeros((B, T, 1 + k), np.float32), y.numpy()
    ids[:, :, 0], values[:, :, 0] = truth, keep_true
    row, at, proposed = np.arange(B)[:, None], proposals.positions.astype(np.int64), proposals.ids
    if keep_true:
        proposed = np.where(
            proposed == truth[row, at][:, :, None], -1, proposed
        )  # the true token is there already
    value = weight * proposals.probs.astype(np.float32) if soft else weight
    ids[row, at, 1:], values[row, at, 1:] = proposed, np.where(proposed < 0, 0, value)
    return Targets(torch.from_numpy(ids).flatten(0, 1), torch.from_numpy(values).flatten(0, 1))


# -----------------------------------------------------------------------------
# The store: one record a window, beside the token file

_MAGIC = b"NHLABEL2"  # 2: records with checksums


def identity(tokens: TokenFile, teacher: Teacher, block_size: int, settings: Settings) -> dict:
    """Everything the proposals depend on. Equal identities, equal labels."""
    return {
        "corpus": tokens.info["sha256"],
        "tokens": len(tokens.ids),
        "tokenizer": tokens.info["fingerprint"],
        "block_size": block_size,
        "teacher": teacher.fingerprint,
        "dtype": teacher.dtype,
        **asdict(settings),
    }


def _record(vocab_size: int, m: int, k: int) -> np.dtype:
    # 65535 stands for -1 in 16 bits, which is why a vocabulary of 65536 takes 32
    kind = "<u2" if vocab_size < 65536 else "<u4"
    return np.dtype(
        [("positions", "<u2", (m,)), ("ids", kind, (m, k)), ("probs", "<f2", (m, k)), ("crc", "<u4")]
    )


def _checksums(records: np.ndarray, first: int) -> np.ndarray:
    """CRC-32 (n,) of each record and of its window, `first` and on: a record at another one's place is
    damage, too. About 1 GB/s.
    """
    raw = records.view(np.uint8).reshape(len(records), -1)[:, :-4]  # without the checksum itself
    return np.array([zlib.crc32(r, first + i) for i, r in enumerate(raw)], "<u4")


def sound(records: np.ndarray, title: str, at_once: int = 256) -> int:
    """How many records from the first on are what was written."""
    with tqdm(total=records.nbytes, unit="B", unit_scale=True, desc=title, leave=False, delay=2) as bar:
        for start in range(0, len(records), at_once):
            part = np.ascontiguousarray(records[start : start + at_once])
            bad = np.flatnonzero(_checksums(part, start) != part["crc"])
            if len(bad):
                return start + int(bad[0])
            bar.update(part.nbytes)
    return len(records)


class Store:
    """Proposals read from a file. ValueError if it is missing, cut short or damaged, or was made by another teacher, corpus or setting.

    Every record is checked when it is opened, not in the middle of a training: a reading of the file.
    """

    def __init__(self, path: Path, want: dict, vocab_size: int):
        self.path, self.vocab_size, self.block_size = path, vocab_size, want["block_size"]
        try:
            has = read_json(path.with_suffix(".json"))
            sizes = [has[key] for key in ("windows", "m", "k")]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            raise UserError(
                f"no whole label store {path}: delete it, and build it with python augment.py"
            ) from None
        odd = [k for k in want if has.get(k) != want[k]]
        if odd:
            raise UserError(
                f"the label store {path} was made with another {odd[0]} ({has.get(odd[0])!r}, not {want[odd[0]]!r}): delete it and build this one"
            )
        most = (want["tokens"] - 1) // want["block_size"], want["block_size"], vocab_size
        if not all(type(n) is int and 0 < n <= high for n, high in zip(sizes, most)) or sizes[0] != most[0]:
            raise UserError(
                f"the label store {path} is damaged: its JSON gives windows, m, k as {sizes}: "
                f"delete it and build it again"
            )
        record = _record(vocab_size, has["m"], has["k"])
        size = len(_MAGIC) + has["windows"] * record.itemsize
        if not path.is_file() or path.stat().st_size != size or path.open("rb").read(len(_MAGIC)) != _MAGIC:
            raise UserError(
                f"the label store {path} is cut short or damaged, or an earlier version's ({size} bytes expected): delete it and build it again"
            )
        self.records = np.memmap(path, record, "r", len(_MAGIC), (has["windows"],))
        whole = sound(self.records, f"checking {path.name}")
        if whole < len(self.records):
            raise UserError(
                f"the label store {path} is damaged: the record of window {whole} is not what was written; delete it and build it again"
            )

    def proposals(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Proposals:
        r = self.records[indices]
        ids = r["ids"].astype(np.int64)
        ids[r["ids"] == np.iinfo(r["ids"].dtype).max] = -1
        probs = r["probs"]
        in_range = r["positions"].max() < self.block_size and ids.max() < self.vocab_size
        if not (in_range and ((probs >= 0) & (probs <= 1.001)).all()):
            raise UserError(
                f"the label store {self.path} is damaged: windows {indices.min()} to "
                f"{indices.max()} hold ids, positions or probabilities that cannot be: "
                "delete it and build it again"
            )
        return Proposals(r["positions"], ids, r["probs"])


class Online:
    """The same proposals, computed at each step by the teacher."""

    def __init__(self, teacher: Teacher, settings: Settings):
        self.teacher, self.settings = teacher, settings

    def proposals(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Proposals:
        return propose(self.teacher, indices, x, y, self.settings)


def store_path(tokens: TokenFile, want: dict) -> Path:
    key = hashlib.sha256(json.dumps(want, sort_keys=True).encode()).hexdigest()[:12]
    return tokens.path.with_name(f"{tokens.path.stem}.labels-{key}.bin")


def build_store(
    tokens: TokenFile,
    teacher: Teacher,
    block_size: int,
    settings: Settings,
    batch: int = 16,
    want: dict | None = None,
) -> Store:
    """Opens the store of these settings, building it first if it is not there. A build that was stopped goes on where it stopped.

    Memory is that of one batch of windows. If another process is building it, waits for that.
    """
    want = want or identity(tokens, teacher, block_size, settings)
    path, V = store_path(tokens, want), tokens.info["vocab_size"]
    meta = path.with_suffix(".json")
    if meta.is_file():
        return Store(path, want, V)
    windows = Windows(tokens, block_size)
    m, k = settings.count(block_size), min(settings.candidates, V)
    record = _record(V, m, k)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(path), timeout=0))
        except filelock.Timeout:
            tqdm.write(f"another process is building {path}: waiting for it")
            stack.enter_context(locked(lock_of(path)))
        if not meta.is_file():  # else it was finished meanwhile
            _build(path, teacher, windows, settings, record, batch)
            write_json(meta, {**want, "teacher_name": teacher.name, "windows": len(windows), "m": m, "k": k})
    return Store(path, want, V)


def _build(
    path: Path, teacher: Teacher, windows: Windows, settings: Settings, record: np.dtype, batch: int
) -> None:
    """Writes the records of all windows to `path`, going on from what a build that was stopped left."""
    part = path.with_suffix(".part")
    if path.is_file() and not part.is_file():  # killed before its JSON was written: it may be all there
        path.replace(part)
    done = _done(part, record, len(windows), batch)
    needs, free = (len(windows) - done) * record.itemsize, shutil.disk_usage(path.parent).free
    if needs > free:
        raise UserError(
            f"the label store needs {needs / 1e9:.1f} GB{' more' * bool(done)}, {path.parent} has {free / 1e9:.1f} GB free: lower candidates or positions, "
            f"use --label_store=False, or free some space"
        )
    tqdm.write(
        f"building {path}, {len(windows) * record.itemsize / 1e6:,.1f} MB: {settings.count(windows.block_size)} of {windows.block_size} positions, "
        f"{record['ids'].shape[1]} candidates at each"
        + f"; {done:,} of {len(windows):,} windows are there"
        * bool(done)
    )
    with open(part, "ab") as f:
        f.truncate(0 if not done else len(_MAGIC) + done * record.itemsize)
        if not done:
            f.write(_MAGIC)
        with tqdm(
            total=len(windows) * windows.block_size,
            initial=done * windows.block_size,
            unit="tok",
            unit_scale=True,
            desc=f"labels by {teacher.name}",
        ) as bar:
            for start in range(done, len(windows), batch):
                indices = np.arange(start, min(start + batch, len(windows)))
                out = np.zeros(len(indices), record)
                out["positions"], ids, out["probs"] = propose(
                    teacher, indices, *windows.get(indices), settings
                )
                out["ids"] = np.where(ids < 0, np.iinfo(record["ids"].base).max, ids)
                out["crc"] = _checksums(out, start)
                f.write(out.tobytes())
                bar.update(len(indices) * windows.block_size)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)


def _done(part: Path, record: np.dtype, windows: int, batch: int) -> int:
    """How many windows of an unfinished store are sound: whole batches of them, so that the rest is
    computed as it would have been.
    """
    if not part.is_file() or part.open("rb").read(len(_MAGIC)) != _MAGIC:
        return 0
    count = min(windows, (part.stat().st_size - len(_MAGIC)) // record.itemsize)
    records = np.memmap(part, record, "r", len(_MAGIC), (count,)) if count else np.zeros(0, record)
    found = sound(records, f"checking {part.name}")
    return found if found == windows else found // batch * batch


def main(argv: list[str]) -> int:
    """Builds the label store of a training configuration."""
    import train  # here: train imports this module

    if wants_help(argv):
        print(__doc__, help_text(train.TrainConfig), sep="\n")
        return 0
    config = train.read_arguments(argv)
    if config.labels == "true":
        raise UserError(
            "labels = 'true': this configuration has no proposals to store; give one that has, such as config/sig_gpt.py, or --labels=soft"
        )
    procs = train.Processes(config.device)
    config = replace(config, label_store=True, dtype=train.settle_dtype(config, procs, print).name)
    tokens = open_tokens(train.prepared(config.dataset, config.tokenizer, config.source) / "train.bin")
    store = train.Labels(config, tokens, procs).source
    print(
        f"{store.path}: {len(store.records):,} windows, {store.records['ids'].shape[1]} positions of each, {store.records['ids'].shape[2]} candidates at each, {store.path.stat().st_size / 1e6:,.1f} MB"
    )
    return 0


if __name__ == "__main__":
    cli(main)()
