"""Costs and promises of our own machinery, measured side by side with doing without it. Not shipped; run in a checkout.

`python -m bench` runs all that need no words, `python -m bench NAME` one; `bench.__main__` lists them. A bench is a
function that returns a report: its text, and whether its promises are kept.
"""
