"""Metrics, leaderboards and comparisons, from records alone."""
