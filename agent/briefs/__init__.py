"""From the record of a search to what a prompt is made of."""
