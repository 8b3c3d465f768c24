"""`python -m node`: one node in this process, as `qlog serve` does it."""

import sys

from quorumlog.cli import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]], prog_name="qlog")
