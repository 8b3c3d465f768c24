"""`python -m pipeline JOB`: runs a job in this process, as `qlog pipeline JOB` does."""

import sys

from qlog import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]], prog_name="qlog")
