"""From a candidate to a verdict on one problem."""
