"""Where the texts of a table's rows lie beside human ones: t-SNE of their embeddings."""
