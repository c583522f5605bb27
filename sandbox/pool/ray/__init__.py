"""The pool on a Ray cluster."""
