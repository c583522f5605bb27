"""Commands that show and hand on what came of it."""
