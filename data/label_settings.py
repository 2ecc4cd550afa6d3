"""What decides a teacher's proposals (data/labels.py), apart from torch."""

from dataclasses import dataclass

from common.errors import UserError


@dataclass(frozen=True)
class LabelSettings:
    """What decides the proposals (and so belongs to a store's identity)."""

    candidates: int = 50  # k: tokens proposed at a position, the teacher's most probable
    positions: float = 0.5  # m: positions of each window; a share below or at 1, a number above
    ppl_threshold: float = 0.0  # proposals of a higher perplexity are dropped; 0: none is
    ppl_form: str = "prefix"  # of the window up to the candidate, or of the "full" window with it put in
    seed: int = 1337  # of the choice of positions

    def count(self, block_size: int) -> int:
        """m for windows of `block_size`. UserError for what cannot be."""
        if block_size > 65536:  # places are kept in 16 bits
            raise UserError(f"block_size = {block_size}: a teacher labels windows of at most 65536 tokens")
        m = round(self.positions * block_size) if self.positions <= 1 else int(self.positions)
        if not 1 <= m <= block_size:
            raise UserError(
                f"positions = {self.positions} means {m} of block_size = {block_size}: "
                f"must lie between 1 and {block_size}"
            )
        return m

    def reads(self, block_size: int, vocab_size: int) -> int:
        """Tokens that the teacher reads to label one window: the window itself, and once more with each
        candidate put in where the perplexity of the full window decides."""
        again = self.count(block_size) * min(self.candidates, vocab_size)
        full = self.ppl_threshold > 0 and self.ppl_form == "full"
        return block_size * (1 + again * full)
