"""Servers that speak OpenAI's interfaces: chat completions, responses and batches."""
