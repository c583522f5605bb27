"""The search for the best candidate, given a problem, a model and a budget, with its record.

It asks a provider, extracts the candidate from the reply, has it judged, and lets a strategy decide on the next ask.
Every step is an event in an append-only log. The search never runs candidate code, decides nothing about correctness or
speed (the sandbox's judge does), repairs no candidate by itself, and writes no provider's key to disk.
"""
