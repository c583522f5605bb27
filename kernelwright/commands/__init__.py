"""Commands by topic. Heavy imports are inside the functions, so that `--help` answers at once."""
