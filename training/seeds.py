"""Seeds of a training: randomness is a function of (seed, step, rank), so no generator state is saved."""


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out
