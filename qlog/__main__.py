"""`python -m qlog`: the command line, for a program that starts it by its interpreter."""

from qlog import main

if __name__ == "__main__":
    main(prog_name="qlog")
