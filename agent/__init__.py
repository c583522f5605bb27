"""The search for the best candidate, given a problem, a model and a budget, with its record.

It sends requests to a provider, extracts the candidate from the reply, has it judged, and lets a strategy decide on the
next step.
Every step is an event in an append-only log. The search never runs candidate code: the sandbox's judge decides about
correctness and speed. It repairs no candidate by itself, and writes no provider's key to disk.
"""
