"""A verdict in numbers, and what is reported of many."""
