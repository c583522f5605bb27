"""The record of a search: events on disk, folded into a view, and which attempt is the best."""
