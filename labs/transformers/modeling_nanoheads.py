"""A run as a transformers model, whose logits are the normalised log-probabilities of the next token.

So what transformers samples and scores is what the head says, whichever head it is. export.py writes this
file into the folder, beside model.py and the files of heads/: there it needs torch and transformers alone.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import Cache as TheirCache
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from heads import Weights
from model import GPT, Cache, build

EPSILON = 1e-6  # of PPL_eps, which scores heads with exact zeros
LEFT_BY_GENERATE = ("cache_position", "tokenizer")  # among the arguments of forward; both are done with


class NanoHeadsConfig(PretrainedConfig):
    """`run`: what `model.build` makes the model of.

    `draws`: how many draws of a Bayesian projection's weights are stored; 0 where the weights are points.
    """

    model_type = "nanoheads"

    def __init__(self, run: dict[str, Any] | None = None, draws: int = 0, **kwargs: Any):
        self.run, self.draws = run or {}, draws
        super().__init__(**kwargs)


class SharedReadout:
    """A projection by the embedding's weights, which have one name: what transformers asks of weights that
    have two differs from version to version."""

    owner: tuple[torch.nn.Module]  # in a tuple, torch does not take it for a part of the projection

    @property
    def weight(self) -> Any:
        return self.owner[0].weight


class NanoHeadsForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = NanoHeadsConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    drawn: Tensor  # (S, padded V, C)

    def __init__(self, config: NanoHeadsConfig):
        super().__init__(config)
        version = transformers.__version__
        if config.run.get("trunk") == "transformers" and version.startswith("4."):
            # it does not read version 5's rope_parameters: other positions, and no error
            raise ImportError(f"this model needs transformers 5, and here is {version}")
        self.lm = build(config.run)
        projection: Any = self.lm.head.projection
        if config.run.get("tied", True):
            del projection.weight
            projection.owner = (self.get_input_embeddings(),)
            projection.__class__ = type("Projection", (SharedReadout, type(projection)), {})
        if not self.foreign:
            self.trunk.tied = False  # no sparse gradients, which train.py alone asks for
            for block in self.trunk.h:  # transformers has its gradient checkpointing in this class
                block.__class__ = type("Block", (GradientCheckpointingLayer, type(block)), {})
        places: Any = getattr(self.trunk, "wpe", None)
        if getattr(places, "sinusoidal", False):
            # stored with the weights, because transformers builds a model without data
            places.register_buffer("table", places.table)
        if config.draws:
            drawn = torch.zeros(config.draws, *self.lm.head.projection.weight.shape)
            self.register_buffer("drawn", drawn)
        self.post_init()

    @property
    def foreign(self) -> bool:
        """Whether the trunk is a base model of transformers."""
        return not isinstance(self.trunk, GPT)

    @property
    def keeps(self) -> bool:
        """Whether it has a cache. Masked diffusion and models without attention have none."""
        return not self.masked and bool(getattr(self.trunk, "cache_name", True))

    @property
    def masked(self) -> bool:
        """Whether the run is masked diffusion, which reads whole blocks."""
        return getattr(self.trunk, "kind", "") == "masked"

    @property
    def context(self) -> int:
        """Tokens that have logits at most: masked diffusion needs a place after them in its block."""
        return self.trunk.context - self.masked

    @property
    def trunk(self) -> Any:
        return self.lm.trunk

    def _supports_default_dynamic_cache(self) -> bool:  # type: ignore[override]  # asked of the model
        """Not where layers without attention may keep something else: `forward` makes that cache."""
        return not (self.foreign and self.keeps)

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing: `build` has done it."""

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.trunk.model.get_input_embeddings() if self.foreign else self.trunk.wte

    def weights(self) -> list[Weights]:
        """What `OutputHead.log_probs` averages over."""
        if not self.config.draws:
            head = self.lm.head
            return [head.scored(head.projection.draw())]  # with gradients, which `draws` does not have
        return [Weights(drawn, self.lm.head.projection.bias) for drawn in self.drawn]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: TheirCache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: TheirCache | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """`logits` (B, T, V): float32 log p of the token after each of `input_ids` (B, T).

        attention_mask      (B, past + T), 0 where a token is padding, of any id
        position_ids        (B, T) place of each token; None: counted in attention_mask
        past_key_values     of the tokens before; made if `use_cache`, except by masked diffusion, which has
                            none. transformers 5.24 calls it `cache`
        labels              (B, T), -100 where there is none. In train() `loss` is the mean, over those after
                            the first, of what the run's training minimised (sampled_softmax: with all
                            tokens), and there are no logits. In eval() it is the mean of -log p; of a head
                            with exact zeros that of -log((p + EPSILON) / (1 + V EPSILON)): log PPL_eps
        logits_to_keep      how many of the last positions have logits, or which; 0: all
        num_items_in_batch  what the sum of the loss is divided by, as Trainer asks for

        The logits of masked diffusion are those of its places from left to right, each given the text before
        it and nothing behind: a language model whose probabilities are exact (Turok et al. 2026, arXiv
        2603.01367). Each of them takes a pass over a block.

        ValueError for any other argument that is set, for a text longer than config.max_position_embeddings,
        and for labels in train() where Bayesian weights are stored as draws.
        """
        asked = {"output_hidden_states": self.config.output_hidden_states} | kwargs
        names = [
            k for k, v in asked.items() if k not in LEFT_BY_GENERATE and v is not None and v is not False
        ]
        if input_ids is None or names:
            raise ValueError(f"give input_ids; this model has no answer to {names}")
        if labels is not None and self.training and self.config.draws:
            raise ValueError("labels in train(): Bayesian weights are stored as draws, which do not learn")
        past_key_values = cache if past_key_values is None else past_key_values
        if past_key_values is not None and not self.keeps:
            raise ValueError("this model reads the text anew for each token: give use_cache=False")
        if use_cache and past_key_values is None and self.keeps:
            past_key_values = DynamicCache(config=self.trunk.model.config if self.foreign else self.config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        shape = len(input_ids), past + input_ids.shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(shape, device=input_ids.device)
        if attention_mask.shape != shape:
            raise ValueError(f"attention_mask is {tuple(attention_mask.shape)}, not {shape}")
        seen = attention_mask.bool()
        if position_ids is None:
            position_ids = (seen.cumsum(1) - 1).clamp(min=0)[:, past:]
        places = position_ids.expand_as(input_ids)
        if places.amax() >= self.context:
            raise ValueError(
                f"{int(places.amax()) + 1} tokens do not fit the {self.context} that this model reads: "
                "shorten the text"
            )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        needed = keep if labels is None else slice(None)
        if self.masked:
            hidden = self._before(input_ids, places, seen, places[:, needed])
        else:
            hidden = self._hidden(input_ids, places, seen, past_key_values, past)[:, needed]
        if labels is None:
            # the name of the third differs
            return CausalLMOutputWithPast(None, self._log_probs(hidden), past_key_values)
        logits = None if self.training else self._log_probs(hidden)
        total, count = self._loss(input_ids, labels, hidden, logits)
        loss = total / (count if num_items_in_batch is None else num_items_in_batch)
        return CausalLMOutputWithPast(loss, None if logits is None else logits[:, keep], past_key_values)

    def _loss(
        self, tokens: Tensor, labels: Tensor, hidden: Tensor, log_p: Tensor | None
    ) -> tuple[Tensor, int]:
        """(sum of the losses, number of labels that have one), see `labels`. `log_p` (B, T, V) None: what the
        run's training minimised, of hidden states (B, T, C)."""
        following, head = F.pad(labels, (0, 1), value=-100)[:, 1:], self.lm.head
        has_loss = following != -100
        if log_p is None:
            targets = head.head.targets(tokens, following.masked_fill(~has_loss, -1)).kept()
            return torch.compiler.disable(head.loss)(hidden, targets)  # threads do its work
        nll = F.nll_loss(log_p.flatten(0, 1), following.flatten(), reduction="none")[has_loss.flatten()]
        if head.head.sparse:
            nll = -torch.log((torch.exp(-nll) + EPSILON) / (1 + EPSILON * self.config.vocab_size))
        return nll.sum(), len(nll)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, V), a few rows at a time."""
        rows = hidden.flatten(0, 1)
        logits = rows.new_empty(len(rows), self.config.vocab_size, dtype=torch.float32)
        for part, log_p in self.lm.head.log_prob_blocks(rows, self.weights()):
            logits[part] = log_p
        return logits.unflatten(0, hidden.shape[:2])

    def _before(self, tokens: Tensor, places: Tensor, seen: Tensor, asked: Tensor) -> Tensor:
        """Hidden states (B, K, C) of masked diffusion at the places after `asked` (B, K), given the tokens
        (B, T) of `places` up to these; the rest of the block is hidden."""
        size = self.trunk.config
        blocks = tokens.new_full((len(tokens), size.block_size), size.vocab_size)
        rows, numbers = seen.nonzero(as_tuple=True)
        blocks[rows, places[rows, numbers]] = tokens[rows, numbers]
        behind = torch.arange(size.block_size, device=tokens.device) > asked[:, :, None]
        read = blocks[:, None].masked_fill(behind, size.vocab_size).flatten(0, 1)  # (B * K, block_size)
        after = (asked + 1).flatten()
        some = max(1, 2**14 // size.block_size)  # blocks a pass
        parts = [
            self.trunk(part)[torch.arange(len(part)), places]
            for part, places in zip(read.split(some), after.split(some))
        ]
        return torch.cat(parts).unflatten(0, asked.shape)

    def _hidden(
        self, tokens: Tensor, places: Tensor, seen: Tensor, past_cache: TheirCache | None, past: int
    ) -> Tensor:
        """Hidden states (B, T, C) of tokens (B, T) at `places` (B, T), after `past` tokens in the cache.

        A trunk of any order has a start token. It sees itself alone, so it is computed anew each time: their
        cache holds the text and nothing else.
        """
        trunk = self.trunk
        tokens = tokens.masked_fill(~seen[:, past:], 0)  # the padding's id may be beyond the vocabulary
        if self.foreign:
            takes = inspect.signature(trunk.model.forward).parameters
            given = {"attention_mask": seen.long(), "position_ids": places, trunk.cache_name: past_cache}
            given = {key: value for key, value in given.items() if key in takes}
            out = trunk.model(input_ids=tokens, use_cache=past_cache is not None, **given)
            return out.last_hidden_state
        first = getattr(trunk, "prefix_tokens", 0)
        if first:
            block_size = trunk.config.block_size
            tokens = F.pad(tokens, (1, 0), value=self.config.vocab_size)
            following = F.pad(places + 1, (1, 0))
            standing = F.pad(places, (1, 0), value=block_size)
            places = torch.stack((standing, following), -1)
            seen = torch.cat((seen[:, :past], torch.ones_like(seen[:, :1]), seen[:, past:]), 1)
        slots = torch.arange(seen.shape[1], device=seen.device)
        new_slots = slots[past:, None]
        # (B, T, past + T); padding sees itself
        mask = (slots <= new_slots) & seen[:, None] | (slots == new_slots)
        if first:
            mask[:, 0] = slots == past
        if past_cache is None:
            return trunk(tokens, places, mask=mask)[:, first:]
        cache = Cache(trunk, len(tokens), trunk.wte.weight.dtype, seen.shape[1])
        cache.length = past
        layers = range(trunk.config.n_layer)
        for i in layers if past else ():
            layer: Any = past_cache.layers[i]
            cache.kv[i, 0, :, :, :past] = layer.keys[:, :, :past]
            cache.kv[i, 1, :, :, :past] = layer.values[:, :, :past]
        hidden = trunk(tokens, places, cache, mask)[:, first:]
        new = slice(past + first, seen.shape[1])
        for i in layers:
            past_cache.update(cache.kv[i, 0, :, :, new], cache.kv[i, 1, :, :, new], i)
        return hidden
