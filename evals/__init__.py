"""Many problems in one go, and their results, from the record alone."""
