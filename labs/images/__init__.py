"""How good the images are that models of labs/image_tokens draw: a measure, and a sampler with guidance."""
