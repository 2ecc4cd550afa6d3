"""WikiText-103 v1 (Merity et al. 2016)."""
