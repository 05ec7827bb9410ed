"""NEO: moments of the embeddings, rules that turn them into a centroid, and the head that subtracts it."""
