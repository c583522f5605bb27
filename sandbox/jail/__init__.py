"""The process tree of a child: its start, its view of the machine, its stop and its end."""
