"""A child's process tree: how it is started, what it sees of the machine, how it is stopped and ended."""
