"""Values as the judge holds them: bytes and a tree, never an object that a child made."""
