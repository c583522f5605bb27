"""Workers of the pool: processes of ours beside a device, and what is carried to and from them."""
