"""The judge of candidates, and the jail that they run in.

The judge's process never imports candidate code. Children run it: a builder compiles, a worker answers calls, and a
reference worker, a different process, gives inputs, expected values and the baseline's time. What a child says is
never trusted beyond "done": the judge reads the raw output bytes itself, compares them and keeps the clock.
"""
