"""Inference from released statistics, with the confidential records as latent variables."""
