"""Ten heads of no source document: other links of softmax, and other losses."""
