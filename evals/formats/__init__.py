"""Candidates and results as other benchmarks keep them, in and out. Texts and records only; nothing is run.

A reader gives `Samples`, with the reason for each that can not be used. A writer takes `Outcome`s and returns what it
could not put into the format.
"""
