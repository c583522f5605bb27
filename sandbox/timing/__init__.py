"""Paired timing: candidate and baselines alternately on the same fresh values."""
