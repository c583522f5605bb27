"""Candidate files judged in one go, and their verdicts on disk."""
