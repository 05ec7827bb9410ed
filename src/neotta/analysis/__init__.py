"""Looking into the latent space: neural collapse, and how a shift of the input moves embeddings."""
