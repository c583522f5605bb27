"""How fast a problem can possibly be done on a device: its necessary work over what the device can do.

The reference's child finds the work, this room what a device can do; `verdict/roofline.py` divides one by the other.
A floor is a lower bound on every correct program's time, so each step errs downwards: what can not be shown to be
necessary is not counted, and measured rates get some headroom. See docs/floor.md.
"""
