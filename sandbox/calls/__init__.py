"""Sessions of the judge with its children, on a processor and on a GPU: questions, answers, and values."""
