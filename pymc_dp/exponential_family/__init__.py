"""Likelihoods that depend on the records through sums of statistics alone."""
