"""How good is it: many problems in one go, and what came out, from the record alone."""
