"""Commands that search, and what a search needs."""
