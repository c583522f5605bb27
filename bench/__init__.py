"""Costs and promises of our own machinery, measured side by side with doing without it. Not shipped; run in a checkout.

`python -m bench` lists all benches, `python -m bench NAME` runs one. A bench is a function that returns a report: its
text, and whether its promises are kept.
"""
