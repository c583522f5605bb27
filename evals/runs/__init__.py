"""A search over many problems: which they are, the run in its folder, and the facts that are kept of it."""
