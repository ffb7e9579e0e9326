"""The normal surrogate of models whose records each use one row of some tables of parameters."""
