"""A program run under torch's profiler, in its own process: which modules ran, on what, how often and how long."""
