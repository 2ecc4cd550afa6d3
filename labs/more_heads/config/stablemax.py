# StableMax: z + 1 in place of e^z, and 1 / (1 - z) below 0.
head = "stablemax"
