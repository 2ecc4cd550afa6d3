"""Any head's loss of a whole causal language model of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .base import Head, Targets
from .functional import Reduction, as_head, as_layer, linear_loss, log_probs


class SoftCapped(Head):
    """A head on the logits cap tanh(z / cap). Source: Gemma 2, 2024, arXiv 2408.00118, sec. 2."""

    def __init__(self, head: Head, cap: float):
        super().__init__(head.vocab_size)
        self.head, self.cap = head, cap
        self.multi_label, self.sparse = head.multi_label, head.sparse

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return self.head.loss(self.cap * torch.tanh(logits / self.cap), targets)

    def log_probs(self, logits: Tensor) -> Tensor:
        return self.head.log_probs(self.cap * torch.tanh(logits / self.cap))


def causal_loss(
    model: Any,
    input_ids: Tensor | None,
    labels: Tensor,
    head: str | Any = "softmax",
    num_items_in_batch: Tensor | int | None = None,
    attention_mask: Tensor | None = None,
    gain: float = 1.0,
    ignore_index: int = -100,
    token_weights: Tensor | None = None,
    stats: dict[str, Tensor] | None = None,
    **inputs: Any,
) -> Tensor:
    """`model(input_ids, labels=labels).loss` with any head, without the (B, T, V) logits; in nats.

    model               a causal language model of transformers, with or without a LoRA of peft, also in
                        DistributedDataParallel
    input_ids, labels   (B, T); labels are shifted here, and `ignore_index` has no loss
    head, gain          see `linear_loss`; the gain multiplies the model's own factor on its logits
    num_items_in_batch  tokens of the whole batch, as the Trainer counts them: the sum is divided by it.
                        None: the mean of these
    token_weights       (B, T), of the labels: see `linear_loss`
    stats               gets "entropy" and "argmax" (B, T - 1), of the next token after each but the last
    inputs              what else the model takes, such as position_ids

    The model runs up to its lm head, whose logits are made in chunks here. A model may multiply its logits by
    a factor (Granite, Cohere) and cap them (Gemma 2): each call lets the model make the logits of three
    vectors, and compares them with ours. ValueError naming a model that does anything else.
    """
    inner = model
    while not hasattr(inner, "get_output_embeddings") and hasattr(inner, "module"):
        inner = inner.module  # of DistributedDataParallel
    layer = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    name = type(inner).__name__
    if layer is None or inner.config.is_encoder_decoder:
        raise ValueError(f"model: {name} is no causal language model with an lm head")
    kind, more = getattr(inner, "loss_type", None), getattr(inner, "z_loss_coefficient", 0)
    if more or kind not in (None, "ForCausalLM", "ForConditionalGeneration"):
        raise ValueError(f"model: the loss of {name} is not the cross-entropy of the next token alone")
    if inputs.get("shift_labels") is not None:
        raise ValueError("shift_labels: labels are shifted here; linear_loss takes shifted ones")
    inputs |= dict(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    with no_dropout(layer):  # in its LoRA, so that both make the same logits of the probe
        hidden, probe, output, autocast = run_to(layer, model, inputs)
        V = len(as_layer(layer, None, hidden).weight)
        head, plain = as_head(head, V), as_head("softmax", V)

        # What the model does with logits
        text = inner.config.get_text_config()
        factors = [getattr(text, key, None) for key in ("logit_scale", "lm_head_multiplier")]
        factor = next(filter(None, factors), 1 / (getattr(text, "logits_scaling", None) or 1))
        cap = getattr(text, "final_logit_softcapping", None)
        if cap and head.cosine:
            raise ValueError(f"head: {type(head).__name__} is on cosines, and {name} caps its logits")
        if cap:
            head, plain = SoftCapped(head, cap), SoftCapped(plain, cap)
        with autocast:
            ours, theirs = log_probs(probe, layer, plain, gain=factor), output.logits.float().log_softmax(-1)
    alike = (ours - theirs).norm(dim=-1) <= 0.02 * ours.norm(dim=-1)  # no where theirs is infinite or nan
    if not alike.all() or getattr(output, "aux_loss", None) is not None:
        raise ValueError(f"model: {name} does more than a factor and a cap between its lm head and its loss")
    if hidden.shape[:2] != labels.shape:  # virtual tokens of a prompt, or logits_to_keep
        raise ValueError(f"labels are {[*labels.shape]}, and the lm head sees {[*hidden.shape[:2]]} tokens")

    hidden, labels = hidden[:, :-1], labels[:, 1:]
    token_weights = None if token_weights is None else token_weights[:, 1:]
    reduction: Reduction = "mean" if num_items_in_batch is None else "sum"
    with autocast:
        loss = linear_loss(
            hidden, layer, labels, head, None, gain * factor, reduction, ignore_index, token_weights, stats
        )
    return loss if num_items_in_batch is None else loss / num_items_in_batch


@contextmanager
def no_dropout(module: nn.Module) -> Iterator[None]:
    """The module and its parts in eval mode; those that trained do so again afterwards."""
    training = [m for m in module.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def run_to(
    layer: nn.Module, model: Any, inputs: dict[str, Any]
) -> tuple[Tensor, Tensor, Any, torch.autocast]:
    """Runs a model whose `layer` makes its logits; the layer gets three vectors in place of its input.

    Returns the layer's input (B, T, C), the three vectors (1, 3, C), from short to long, the model's output
    for them, and the autocast around the layer.
    """
    seen: list[Any] = []

    def swap(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        (hidden,) = args
        device, width = hidden.device.type, hidden.shape[-1]
        short = torch.linspace(-1, 1, width, device=hidden.device, dtype=hidden.dtype)
        probe = torch.stack([short, 30 * short, 1000 * short])[None]
        on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        seen.append((hidden, probe, torch.autocast(device, dtype=dtype, enabled=on)))
        return (probe,)

    handle = layer.register_forward_pre_hook(swap)
    try:
        output = model(**inputs)
    finally:
        handle.remove()
    if not seen:  # torch.compile traced it before
        raise ValueError("model: its lm head calls no hooks: give the model before torch.compile (_orig_mod)")
    if len(seen) != 1:
        raise ValueError(f"model: {type(model).__name__} calls its lm head {len(seen)} times, not once")
    hidden, probe, autocast = seen[0]
    return hidden, probe, output, autocast
