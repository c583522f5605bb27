"""From a slow program to its slow parts as problems: capture, split, problem files; and kernels put back into it.

A capture runs in the user's own process, since it is their code; everything else works from the folder that it wrote.
Nothing is sent anywhere, and no weight leaves the process unless it is asked for.
"""
