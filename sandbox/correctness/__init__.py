"""Is a result right? Comparison, what rounding may do, families of inputs, and whether a problem can tell at all."""
