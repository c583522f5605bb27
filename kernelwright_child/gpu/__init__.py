"""A child's side of a CUDA device."""
