"""Vertical rates as tokens. sigma-GPTs (arXiv 2404.09562) do not say how theirs are cut up."""

import numpy as np

STEP = 8  # seconds of a token
LENGTH = 64  # tokens of a sequence: 8.5 minutes
BIN = 128  # ft/min of a token: transponders report multiples of 64
LOWEST, HIGHEST = -256, 4864  # ft/min: what lies outside is counted there, .2% of recorded rates

RATES = np.arange(LOWEST, HIGHEST + BIN, BIN)  # (V,) ft/min, the middle of each bin
WORDS = [str(rate) for rate in RATES]


def tokens_of(rates: np.ndarray) -> np.ndarray:
    """The tokens of rates in ft/min."""
    return (np.clip(np.rint(rates / BIN) * BIN, LOWEST, HIGHEST) - LOWEST).astype(np.int64) // BIN
