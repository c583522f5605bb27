"""Commands about whole programs of a user's: what is slow in them, and what became of it."""
