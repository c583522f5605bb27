"""Evaluators that others wrote, beside ours, on the same candidates."""
