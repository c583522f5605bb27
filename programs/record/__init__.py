"""What a capture writes down: tensors as calls met them, the parts that a program can be cut into, and the choice."""
