"""Mechanisms, accounting and the ledger. Knows nothing of PyMC."""
