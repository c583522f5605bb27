"""The search itself: decide, ask, read, judge, keep; for one problem and for many."""
