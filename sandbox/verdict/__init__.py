"""The records of judging, and what is derived from them: candidate, settings, measurement, verdict, floor."""
