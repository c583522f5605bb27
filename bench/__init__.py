"""What our own machinery costs, measured side by side with doing without it. Not shipped; run it from a checkout.

`python -m bench` runs all, `python -m bench jail` one. A bench is one file here with a function `run() -> Comparison`
and a docstring whose first line says what is compared.
"""
