"""How a token is drawn from the distribution that is scored: the flags that every command which draws shares.

Without torch: a command's flags are read before it is imported. evaluate/truncation.py has the formulas.
"""

from dataclasses import dataclass, fields

from common.config import Natural, NonNegative, PositiveShare, Share


@dataclass(frozen=True, kw_only=True)
class Decoding:
    # fmt: off
    # how a token is drawn: from p^(1/temperature), normalised, among the tokens that all cuts leave
    temperature: NonNegative = 1.0  # 0 is greedy
    top_k: Natural = 0              # the most probable tokens that may be drawn; 0: all
    top_p: PositiveShare = 1.0      # or the smallest set of them with this mass
    min_p: Share = 0.0              # or those with this share of the largest probability; 0: all
    # fmt: on


AS_SCORED = Decoding()


def drawn_by(c: Decoding) -> str:
    """The settings in words: temperature, top_k and top_p, and min_p if it is in use."""
    usual = ("temperature", "top_k", "top_p")
    values = {f.name: getattr(c, f.name) for f in fields(Decoding)}
    used = {k: v for k, v in values.items() if k in usual or v != getattr(AS_SCORED, k)}
    return ", ".join(f"{k} {format(v, 'g') if isinstance(v, float) else v}" for k, v in used.items())
