"""How a token is drawn from the distribution that is scored: the flags that every command which draws shares.

Without torch: a command's flags are read before it is imported. evaluation/truncation.py has the formulas.
"""

from dataclasses import dataclass, fields
from typing import Annotated

from runtime.errors import UserError
from runtime.values import Field, Natural, NonNegative, PositiveShare, Share

Factor = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[float, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    # fmt: off
    # how a token is drawn: from p^(1/temperature), normalised, among the tokens that all cuts leave
    # (docs/decoding.md has their formulas and their order)
    temperature: NonNegative = 1.0  # 0 is greedy
    top_k: Natural = 0              # the most probable tokens that may be drawn; 0: all
    top_p: PositiveShare = 1.0      # or the smallest set of them with this mass
    min_p: Share = 0.0              # or those with this share of the largest probability; 0: all
    typical_p: PositiveShare = 1.0  # or those of this mass whose -log p is nearest to the entropy
    epsilon: Share = 0.0            # or those with this probability; 0: all
    eta: Share = 0.0                # or those with this one, or a lower one where the entropy is high; 0: all
    top_a: Share = 0.0              # or those with this multiple of the largest p's square; 0: all
    top_n_sigma: NonNegative = 0.0  # or those whose log p is within this many standard deviations of the
    #                                 largest; 0: all
    min_k: NonNegative = 0.0        # or those before the largest fall of log p over rank, but at least
    #                                 min_k / (the range of log p); 0: all
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class Penalties:
    # fmt: off
    # penalties on what is written: they depend on the text so far, left to right alone
    repetition_penalty: Factor = 1.0  # log p of a token that the text has is multiplied by it; 1: none
    frequency_penalty: float = 0.0    # taken from log p for each time that the token was written
    presence_penalty: float = 0.0     # taken from log p once, if the token was written
    no_repeat_ngram: Natural = 0      # no n tokens in a row come twice in the text; 0: they may
    dry_multiplier: NonNegative = 0.0  # times base^(n - allowed), taken from log p of a token that would
    #                                   repeat n tokens of the text and itself; 0: none
    dry_base: AtLeastOne = 1.75
    dry_allowed_length: Natural = 2   # fewer than these may be repeated
    # fmt: on

    def check_penalties(self) -> None:
        """UserError for a setting of a penalty that is not in use."""
        for key in ("dry_base", "dry_allowed_length"):
            if getattr(self, key) != getattr(NO_PENALTIES, key) and not self.dry_multiplier:
                raise UserError(f"{key} = {getattr(self, key)}: it is of --dry_multiplier; give that, too")


AS_SCORED, NO_PENALTIES = Decoding(), Penalties()


def drawn_by(c: Decoding) -> str:
    """The settings in words: temperature, top_k and top_p, and each other one that is in use."""
    usual = ("temperature", "top_k", "top_p")
    values = {f.name: getattr(c, f.name) for f in fields(Decoding)}
    used = {k: v for k, v in values.items() if k in usual or v != getattr(AS_SCORED, k)}
    return ", ".join(f"{k} {format(v, 'g') if isinstance(v, float) else v}" for k, v in used.items())


def penalties_in_use(c: Penalties) -> list[str]:
    return [f.name for f in fields(Penalties) if getattr(c, f.name) != f.default]


def refuse_penalties(argv: list[str]) -> None:
    """UserError for a penalty among the flags of a table."""
    for flag in argv:
        if flag.startswith("--") and (key := flag[2:].partition("=")[0]) in vars(NO_PENALTIES):
            raise UserError(f"{key}: a table judges the distribution that is scored; leave it out")
