"""Compiling what a candidate asks for, and answering it again later."""
