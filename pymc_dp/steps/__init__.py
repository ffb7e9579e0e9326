"""Private step methods: one file per algorithm, each a pure transition and a thin PyMC step."""
