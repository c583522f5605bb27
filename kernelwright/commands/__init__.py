"""Commands by what they are for. Heavy imports stand inside the functions, so that `--help` answers at once."""
