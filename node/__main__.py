"""`python -m node`: one node in this process, as `qlog serve` does it."""

import sys

from qlog import main


def run() -> None:
    """Run the node until a signal stops it, and end the process."""
    main(["serve", *sys.argv[1:]], prog_name="qlog")


if __name__ == "__main__":
    run()
