"""The judge inside other programs: as the reward of a training run, as an environment, a coding agent's tools."""
