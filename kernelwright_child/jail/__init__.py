"""How a child's process is confined, watched and ended, from inside. At start the standard library alone."""
