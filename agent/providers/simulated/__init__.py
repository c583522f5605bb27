"""A search without a model and without a machine: made-up problems, for trying strategies and the engine.

It can show how strategies compare where ideas, failures and noise behave as `landscape.py` says, and that the engine
keeps its promises under load. It can not show how good a strategy is with a real model on real problems.
"""
