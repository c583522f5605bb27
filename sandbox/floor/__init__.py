"""How fast a problem can possibly be done on a device: its necessary work over what the device can do.

`trace` finds the work (in the reference's child), `peaks` holds what a device can do, `bound` divides one by the other.
A floor is a lower bound on every correct program's time, so each step errs downwards: what can not be shown to be
necessary is not counted, and measured rates get some headroom. See docs/floor.md.
"""
