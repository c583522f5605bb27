"""Does a candidate compute with code of its own? Read from its text, its libraries and a run."""
