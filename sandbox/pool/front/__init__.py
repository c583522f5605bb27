"""How a caller gets at the pool: an executor by choice, and judging from Python."""
