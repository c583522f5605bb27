"""The `Problem` record: the text it stands on, its sizes, dtype and values, and what is wrong with it."""
