"""What `generate` of an exported model of any order, or of masked diffusion, does: it fills in gaps, too.
export.py writes this file into its folder, as custom_generate/generate.py, where transformers takes it in
place of its own `generate`.

A gap is a token -1. Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

GAP = -1
OWN = {"random": "speculative", "fractal": "fractal"}  # the last is none of ORDERS
ORDERS = ("random", "left_to_right", "confidence", "speculative")


def generate(
    input_ids: Tensor | None = None,
    model: Any = None,
    order: str = "",
    generator: torch.Generator | None = None,
    **kwargs: Any,
) -> Any:
    """`input_ids` (B, T) with its gaps filled in, in one of ORDERS; text without gaps goes on as ever, by all
    that transformers' `generate` takes. `order` "": one that the run was trained in: speculative of "random",
    random of masked diffusion, whose passes see no draft, else left_to_right; of "fractal", which is none of
    ORDERS, a ValueError.

    "random", "left_to_right"  a token a pass
    "confidence"               the same, first where the model is surest
    "speculative"              many a pass: all are drawn at once, and kept while they are as probable given
                               each other. Its texts have the distribution of "random"
    """
    input_ids = kwargs.pop("inputs", None) if input_ids is None else input_ids
    if input_ids is None or not (input_ids == GAP).any():
        if order or generator is not None:
            raise ValueError("order and generator are for a text with gaps, tokens -1: leave them out")
        if model.masked:
            kwargs["use_cache"] = False  # it reads its block anew
        return GenerationMixin.generate(model, inputs=input_ids, **kwargs)
    mask = kwargs.pop("attention_mask", None)
    orders = tuple(o for o in ORDERS if not (model.masked and o == "speculative"))
    order = order or ("random" if model.masked else OWN.get(model.trunk.fills, "left_to_right"))
    if order not in orders or kwargs:
        raise ValueError(f"{order!r}, {kwargs}: a text with gaps takes an order of {orders} and a generator")
    texts = input_ids.clone()
    read = torch.ones_like(texts, dtype=torch.bool) if mask is None else mask.bool()  # padding is not
    with torch.no_grad():
        for text, known in zip(texts, read):
            text[known] = fill(model, text[known], order, generator)
    return texts


def fill(model: Any, text: Tensor, order: str, generator: torch.Generator | None) -> Tensor:
    """One text (T,), filled in."""
    if len(text) > (most := model.trunk.config.block_size):
        raise ValueError(f"{len(text)} tokens do not fit the {most} that this model reads")

    def draw(p: Tensor) -> Tensor:
        return torch.multinomial(p, 1, generator=generator)[:, 0]

    text, places = text.clone(), (text != GAP).nonzero()[:, 0]
    while len(free := (text == GAP).nonzero()[:, 0]):
        if order in ("random", "speculative"):
            free = free[torch.randperm(len(free), generator=generator, device=text.device)]
        wanted = free[:1] if order in ("random", "left_to_right") else free
        p = ask(model, text, places, wanted)
        if order == "confidence":
            surest = p.amax(1).argmax()[None]
            wanted, p = wanted[surest], p[surest]
        tokens, kept = draw(p), 1
        if order == "speculative":
            q = ask(model, text, places, wanted, tokens)
            number = torch.arange(len(wanted), device=text.device)
            u = torch.rand(len(wanted), generator=generator, device=text.device, dtype=p.dtype)
            fails = (u * p[number, tokens] >= q[number, tokens]).nonzero()[:, 0]
            fails = fails[fails > 0]  # nothing is drawn before the first, so q is p there
            kept = int(fails[0]) if len(fails) else len(wanted)
            # that one is drawn from what p lacks of q: Leviathan et al. 2023, arXiv 2211.17192
            if len(fails):
                tokens[kept] = draw((q[kept] - p[kept]).clamp(min=0)[None])[0]
                kept += 1
        text[wanted[:kept]] = tokens[:kept]
        places = torch.cat((places, wanted[:kept]))
    return text


def ask(model: Any, text: Tensor, places: Tensor, wanted: Tensor, drafted: Tensor | None = None) -> Tensor:
    """p (n, V), float64, of the tokens at places `wanted` (n,) given those of `text` at `places`, in this
    order: each on its own, or given those `drafted` (n,) before it."""
    size, k, n = model.trunk.config, len(places), len(wanted)
    if model.masked:
        block = text.new_full((size.block_size,), size.vocab_size)
        block[places] = text[places]
        return model._log_probs(model.trunk(block[None])[:, wanted])[0].double().exp()
    read = torch.cat((places.new_full((1,), size.vocab_size), text[places]))  # the start token is first
    standing = torch.cat((places.new_full((1,), size.block_size), places))
    seen = torch.ones(k + n, k + n, dtype=torch.bool, device=text.device).tril()
    if drafted is None:
        seen[k:, k:] = torch.eye(n, dtype=torch.bool, device=text.device)
        read, standing = (torch.cat((t[:-1], t[-1:].expand(n))) for t in (read, standing))
    else:
        read, standing = torch.cat((read, drafted[:-1])), torch.cat((standing, wanted[:-1]))
    following = torch.cat((places, wanted))
    hidden = model.trunk(read[None], torch.stack((standing, following), -1)[None], mask=seen[None])
    return model._log_probs(hidden[:, k:])[0].double().exp()
