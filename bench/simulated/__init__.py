"""What takes the place of models and devices in benches and tests: made-up problems, and time that jumps."""
