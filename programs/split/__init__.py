"""Which parts of a captured program are worth a kernel: ranked, chosen without overlap, as a table and a picture."""
