"""The kernels of a run as a small package of its own, for the user's repository: it imports nothing of ours."""
