"""Foreign text read and put into our convention: arithmetic, constructors, functions, devices. Nothing is run."""
