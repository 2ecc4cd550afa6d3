"""Training on token files: windows of a corpus, as the trunk reads them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from common.errors import UserError
from config.defaults import TrainConfig
from data.batches import BatchSource, TextSource, Windows
from data.corpus import corpus_of, kept_path, load_tokenizer, prepared
from data.tokens import TokenFile, open_held_out, open_tokens, open_truth
from evaluate.metrics import Recovery, Window, document_windows, perplexity, training_windows
from evaluate.scoring import Score, document_blocks, recover, recovery_numbers, score
from heads import SampledSoftmax, Weights
from model import LanguageModel, Plan
from training.checkpoint import Saveable
from training.distributed import Processes
from training.evaluator import Evaluator
from training.labels import open_labels
from training.resume import lower_bias
from training.task import Evaluation

TRUTH_WINDOWS = 128  # of a split, in the log of a corpus whose truth is known


class TextTask:
    """A corpus of tokens, judged by the NLL of its validation split. See training.task.TrainingTask."""

    def __init__(self, config: TrainConfig, procs: Processes):
        c = self.config = config
        folder = procs.first(lambda: prepared(c.dataset, c.tokenizer, c.source))
        train, self.val = open_tokens(folder / "train.bin"), open_held_out(folder / "validation.bin")
        self.train = train._replace(truth=open_truth(train))
        tokenizer = load_tokenizer(folder)
        self.tokenizer: Saveable | None = tokenizer
        self.info: dict[str, Any] = {
            "tokenizer": tokenizer.name,  # not the path of a file
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "data": kept_path(folder),
            "data_sha256": self.train.info["sha256"],
            "validation_sha256": self.val.info["sha256"],
            "train_tokens": len(self.train.ids),
        }
        windows = self.windows = Windows(self.train, c.block_size)
        Windows(self.val, c.block_size)  # which has to hold one, too
        given = len(windows) * windows.given  # tokens without a loss
        self.size = len(self.train.ids) - given

    def source(self, model: LanguageModel, procs: Processes) -> BatchSource:
        c = self.config
        head, bias = model.head.head, model.head.projection.bias
        counts = torch.from_numpy(np.bincount(self.train.ids, minlength=self.info["vocab_size"]) + 1)
        if isinstance(head, SampledSoftmax):
            head.use_frequencies(counts)
        if c.unigram_bias and not c.init_from:
            if bias is None:
                raise UserError(f"unigram_bias: the head {c.head!r} has no bias")
            bias.data.copy_((counts.double() / counts.sum()).log())
        if c.partition_bias and c.init_from and not c.resume:
            lower_bias(model, self.windows.get(np.arange(min(4, len(self.windows))))[0])
        labels, of_teacher = open_labels(c, self.train, model, procs)
        self.info |= of_teacher
        share = (c.micro_batch, procs.rank, procs.world)
        how = model.trunk.arrange, c.lr_decay_steps or c.max_steps
        return TextSource(self.windows, labels, c.batch_size, c.seed, *share, *how)

    # -- evaluation --------------------------------------------------------

    def evaluate(self, evaluator: Evaluator, last: bool) -> Evaluation:
        """The NLL of the validation split as the trunk reads it, of all its windows or of `eval_windows`; and
        of what the trunk can do else (`Trunk.plans`), and where the truth is known how far the model is from
        it. A sparse head, which has no finite NLL, is judged by PPL_eps."""
        c, trunk = self.config, evaluator.model.trunk
        plans, sparse = trunk.plans(self.val.ids, self.val.given), evaluator.model.head.head.sparse
        own = next(iter(plans.values()), None)
        usual = self.validation_score(evaluator, own, c.eval_windows)  # of the windows of all evaluations
        # what a run ends with can be compared with any other run
        s = self.validation_score(evaluator, own) if usual.part and last else usual
        nll, criterion = s.mean, usual.eps_mean if sparse else usual.mean
        if math.isnan(nll):
            return Evaluation({"nll": nll}, {"nll": nll}, "", {})
        logged = {"val_nll": nll, "val_ppl": perplexity(nll, 1), "val_ppl_eps": perplexity(s.eps_mean, 1)}

        line = f"validation{f', {s.part} windows of it,' * bool(s.part)} {nll:.4f} nats/token, "
        line += f"perplexity {logged['val_ppl']:.2f}"
        if sparse and s.eps_mean != nll:
            line += f", PPL_eps {logged['val_ppl_eps']:.2f}"
        line += own.words if own else ""
        if s.part:
            logged["val_windows"] = s.part
        elif usual.part:
            logged["val_nll_windows"] = criterion

        # what the text says of the alternatives: in the log one sees how a head moves them
        val, train = self.val, self.train  # in the latter: what it has learnt by heart
        logged |= self.recovery(evaluator, val, lambda ends: document_windows(ends, trunk.context))
        trained_on = lambda ends: training_windows(ends, c.block_size, trunk.context)
        logged |= self.recovery(evaluator, train, trained_on, "train_")
        for name, plan in plans.items() if len(plans) > 1 else ():
            other = s if plan is own else self.validation_score(evaluator, plan, s.part)
            logged[f"val_ppl_{name}"] = ppl = perplexity(other.nll, other.tokens)
            line += "" if plan is own else f", {name.replace('_', ' ')} {ppl:.2f}"
        if usual.part and not s.part:
            line += f"; its {usual.part} windows of all evaluations {criterion:.4f}"
        return Evaluation({"nll": criterion}, {"nll": nll}, line, logged)

    def validation_score(self, evaluator: Evaluator, plan: Plan | None, part: int = 0) -> Score:
        """The score of `part` windows of the validation split (0: all of them), see evaluate.scoring.score.
        Interrupted, in all processes, if a signal came in one."""
        procs = evaluator.procs

        def work(draws: list[Weights]) -> Score:
            return score(
                *(evaluator.model, self.val.ids, 0, draws, procs.device, evaluator.config.dtype),
                progress=evaluator.until_stopped,
                share=evaluator.share,
                plan=plan,
                given=self.val.given,
                part=part,
            )

        s = evaluator.shared(work)
        nll, tokens, zeros, eps_nll = procs.sums([s.nll, s.tokens, s.zeros, s.eps_nll])
        return s._replace(nll=nll, tokens=int(tokens), zeros=int(zeros), eps_nll=eps_nll)

    def recovery(
        self,
        evaluator: Evaluator,
        split: TokenFile,
        windows: Callable[[np.ndarray], list[Window]],
        prefix: str = "",
    ) -> dict[str, Any]:
        """What the log says where the truth is known: how far the model is from it (metrics.Recovery).

        Above all its mass on the observed token, on valid alternatives, and on the rest. Over the first
        `windows` of the split, the same at every evaluation. `prefix`: of the names. Interrupted as in
        `validation_score`.
        """
        ids, truth, procs = split.ids, split.truth, evaluator.procs
        if truth is None or not evaluator.model.trunk.forwards:
            return {}
        plan = windows(np.flatnonzero(ids == truth.end))[:TRUTH_WINDOWS]

        def work(draws: list[Weights]) -> Recovery:
            blocks = document_blocks(
                *(evaluator.model, ids, plan[evaluator.share], draws, procs.device, evaluator.config.dtype),
                progress=evaluator.until_stopped,
            )
            return recover(blocks, ids, truth)

        recovery = evaluator.shared(work)
        recovery.set_totals(procs.sums(recovery.totals()))
        return recovery_numbers(recovery, prefix)

    def test(self, evaluator: Evaluator, criterion: dict[str, float]) -> None:
        """Nothing: eval_diversity.py scores the test split."""

    # -- words -------------------------------------------------------------

    def greeting(self, source: BatchSource) -> str:
        c, info, data = self.config, self.train.info, self.info["data"]
        changed = corpus_of(c.dataset).unusual_settings(info["source"])
        data += f", prepared with {changed}, not with the standard settings" if changed else ""
        data += ", not the whole official split" if info["complete"] is False else ""
        args = {key: arg for key, arg in c.trunk_args.items() if not isinstance(arg, dict)}
        trunk = "" if c.trunk == "gpt" else f", trunk {c.trunk} {args or ''}".rstrip()
        return (
            f"labels {c.labels}{trunk}; {len(self.train.ids):,} training tokens ({data}), "
            f"{len(self.val.ids):,} validation tokens"
        )

    def best(self, criterion: dict[str, float], model: LanguageModel) -> str:
        kind = "PPL_eps" if model.head.head.sparse else "perplexity"
        kind += f" of at most {self.config.eval_windows} windows" * bool(self.config.eval_windows)
        return f"{kind} {perplexity(criterion['nll'], 1):.2f}"
