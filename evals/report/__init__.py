"""Telling a person how a run goes and what came of it, in a terminal."""
