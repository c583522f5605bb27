"""A run over many problems: start, go on, and what its log says."""
