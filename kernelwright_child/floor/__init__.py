"""The necessary work of a model, counted in a call."""
