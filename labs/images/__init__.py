"""How good the images are that models of labs/image_tokens draw: a measure, and a sampler with guidance."""

from typing import Annotated

from common.config import Field

Guidance = Annotated[float, Field(ge=1)]  # the scale of classifier-free guidance; 1: none
