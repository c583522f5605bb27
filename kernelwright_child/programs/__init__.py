"""The programs that are started in the jail: builder, worker, reference, and a worker's part on a GPU."""
