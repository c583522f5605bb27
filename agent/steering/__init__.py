"""What bounds and steers a search beside its strategy: budget, prices, models, tuning, advice, learning."""
