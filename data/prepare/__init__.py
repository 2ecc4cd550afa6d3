"""What makes a prepared folder: corpora, documents and their splits, the training of tokenizers."""
