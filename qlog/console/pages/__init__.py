"""The data of each page: what a template shows, as plain values. Each module is one page or a few
that belong together; all of them ask `cluster` and nothing else."""
