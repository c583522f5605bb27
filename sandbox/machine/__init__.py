"""What this machine is, and what processes share on it: identity, locks, turns, work folders, stores of files."""
