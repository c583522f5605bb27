"""A whole program with and without its kernels, end to end: paired, with a placebo, and its outputs compared."""
