"""Training in any order, and by masked diffusion: which places of a window are read, which are predicted."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from data.batches import Batch, BatchSource, TextSource
from evaluate.metrics import perplexity
from evaluate.scoring import ScoringPlan
from heads import Targets
from labs.orders.trunk import MASKED, AnyOrder, Masked
from labs.sequences.paths import Order
from model import GPTConfig, LanguageModel, Trunk
from training.distributed import Processes
from training.text import Evaluation, Evaluator, TextTask

TargetsOf = Callable[[Tensor, Tensor], Targets]  # of what is read and what it predicts, (B, T) each


def true_tokens(x: Tensor, y: Tensor) -> Targets:
    return Targets.single(y)


def along(
    tokens: np.ndarray,
    path: np.ndarray,
    start: int,
    *,
    place: int = 0,
    scored: np.ndarray | None = None,
    targets: TargetsOf = true_tokens,
) -> Batch:
    """`tokens` (B, T) in the order of `path` (B, T), where `scored` (B, T) along it (None: all). `start`: id
    of the start token; it stands at `place`, the model's block_size (0: T).

    Positions are (B, T, 2): the place of each, and of the next.
    """
    y = np.take_along_axis(tokens, path, 1)
    read, places = np.roll(y, 1, 1), np.roll(path, 1, 1)
    read[:, 0], places[:, 0] = start, place or tokens.shape[1]
    x, next_x, positions = map(torch.from_numpy, (read, y, np.stack((places, path), 2)))
    return Batch(x, targets(x, next_x).kept(None if scored is None else torch.from_numpy(scored)), positions)


def hide_places(
    tokens: np.ndarray,
    hidden: np.ndarray,
    counted: np.ndarray,
    weights: np.ndarray,
    mask: int,
    targets: TargetsOf = true_tokens,
) -> Batch:
    """`tokens` (B, T) with the id `mask` where `hidden` (B, T); `weights` (B,) of the losses that count."""
    x, y = torch.from_numpy(np.where(hidden, mask, tokens)), torch.from_numpy(tokens)
    of_each = torch.from_numpy(np.repeat(weights, tokens.shape[1]).astype(np.float32))
    return Batch(x, targets(x, y)._replace(weights=of_each).kept(torch.from_numpy(counted)))


def hide(
    tokens: np.ndarray, numbers: np.ndarray, first: np.ndarray, stop: int, mask: int, rest: bool = True
) -> Batch:
    """Windows (B, T) of which k of the F places `first` (B,), ..., stop - 1 are hidden and count, each with
    the weight F / k: the NELBO (`Order.hidden`). The `rest`, what stands after them, may be hidden, too.

    k is spread evenly over the windows by their `numbers` (B,), and which places they are depends on these
    alone.
    """
    free = stop - first
    count = 1 + np.floor((numbers * 0.618033988749895 + 0.5) % 1 * free).astype(int)
    counted = np.zeros(tokens.shape, bool)
    for row, number in enumerate(numbers.tolist()):
        places = np.random.default_rng(number).permutation(free[row])[: count[row]]
        counted[row, first[row] + places] = True
    hidden = counted | (rest & (np.arange(tokens.shape[1]) >= stop))
    return hide_places(tokens, hidden, counted, free / count, mask)


def plan(c: GPTConfig, ids: np.ndarray, order: str, given: int = 0) -> ScoringPlan:
    """How a text is scored in an order: windows from their start token along a path each, or with hidden
    places. A window's path and what it hides are a function of its number alone.

    Windows do not overlap, but for the last one, which is moved back to end with the text; there only the
    tokens count that no other window has. With `given` tokens they are the sequences of the text.
    """
    T = c.block_size if given else min(c.block_size, len(ids))
    starts = [*range(0, len(ids) - T + (given > 0), T)] + [len(ids) - T] * (not given)
    # number, start, first place that counts
    windows = [(n, start, given or max(0, n * T - start)) for n, start in enumerate(starts)]

    def read(part: list[tuple[int, int, int]]) -> Batch:
        numbers, at, first = np.array(part).T
        tokens = np.stack([ids[s : s + T] for s in at]).astype(np.int64)
        if order == MASKED:
            return hide(tokens, numbers, first, T, c.vocab_size)
        path = Order(order).paths(0, numbers, T, given)
        return along(tokens, path, c.vocab_size, place=c.block_size, scored=path >= first[:, None])

    return ScoringPlan(windows, read)


# -----------------------------------------------------------------------------
# The task


def order_of(trunk: Trunk) -> str:
    """The order that it is trained in."""
    return trunk.fills if isinstance(trunk, AnyOrder) else MASKED


class OrdersSource:
    """The windows of `text` in the order that the trunk is trained in; `end`: of the schedule, in steps."""

    def __init__(self, text: BatchSource, trunk: Trunk, end: int):
        assert isinstance(text, TextSource) and isinstance(trunk, AnyOrder | Masked)
        self.text, self.parts, self.positions_with_loss = text, text.parts, text.positions_with_loss
        curriculum, share, steps = trunk.curriculum
        self.order = Order(order_of(trunk), curriculum, share, steps or end, text.seed)
        self.extra = trunk.config.vocab_size  # id of the start or the mask token

    def batch(self, step: int, part: int) -> Batch:
        rows, indices, x, _ = self.text.read(step, part)
        tokens, T, given, order = x.numpy(), x.shape[1], self.text.windows.given, self.order
        targets = partial(self.text.labels.targets, indices)
        if order.name == MASKED:
            counts, weights = order.hidden(step, rows, self.text.batch_size, T - given)
            rngs = zip(order.generators(step, rows), counts)
            hidden = np.pad([rng.permutation(T - given) < k for rng, k in rngs], ((0, 0), (given, 0)))
            return hide_places(tokens, hidden, hidden, weights, self.extra, targets)
        path = order.paths(step, rows, T, given)
        return along(tokens, path, self.extra, scored=path >= given, targets=targets)


class OrdersTask(TextTask):
    """A corpus of tokens, read and scored in the order of the trunk; any order's log has others, too."""

    def source(self, model: LanguageModel, procs: Processes) -> OrdersSource:
        c = self.config
        if c.labels != "true":
            raise UserError(f"labels = {c.labels!r}: trunk = {c.trunk!r} does not predict the next token")
        return OrdersSource(super().source(model, procs), model.trunk, c.lr_decay_steps or c.max_steps)

    def scoring_plan(self, trunk: Trunk, order: str = "") -> ScoringPlan:
        return plan(trunk.config, self.val.ids, order or order_of(trunk), self.val.given)

    def evaluate(self, evaluator: Evaluator, last: bool) -> Evaluation:
        found, trunk = super().evaluate(evaluator, last), evaluator.model.trunk
        own, logged = order_of(trunk), found.logged
        logged["val_order"] = own  # masked diffusion's is a bound
        if own != MASKED and "val_ppl" in logged:  # a number
            logged[f"val_ppl_{own}"] = logged["val_ppl"]
            for order in sorted({"left_to_right", "random"} - {own}):
                how = self.scoring_plan(trunk, order), logged.get("val_windows", 0)
                s = self.validation_score(evaluator, *how)
                logged[f"val_ppl_{order}"] = perplexity(s.nll, s.tokens)
        return found


TASK = OrdersTask
