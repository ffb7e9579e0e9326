"""From a PyMC model to functions of its parameters. Knows nothing of privacy."""
