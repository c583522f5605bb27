"""Look inside runs: one template, as an offline file or as a live view on this machine alone."""
