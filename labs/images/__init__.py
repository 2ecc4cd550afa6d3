"""Images as tokens: how good those are that models of them draw, a measure, and a sampler with guidance."""

from typing import Annotated

from common.config import Field

Guidance = Annotated[float, Field(ge=1)]  # the scale of classifier-free guidance; 1: none
