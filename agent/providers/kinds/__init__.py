"""The providers that ship: a file each, named as `--provider` takes it, whose `provider(options, run)` makes one."""
