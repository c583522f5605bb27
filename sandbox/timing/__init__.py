"""Paired timing: candidate and baselines in turn on the same fresh values."""
