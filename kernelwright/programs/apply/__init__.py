"""Kernels put back into the model that they were cut out of, behind guards, with its own code as the way out."""
