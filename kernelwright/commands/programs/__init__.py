"""A user's program: captured, its parts searched, and the whole judged."""
