"""The command of a process of ours with this interpreter, in any directory.

Owns the words of the command. `-P`: a folder of that name in the directory of a peer must not be
mistaken for a package.
"""

import sys


def python_words(module: str) -> list[str]:
    """Return `python -m module`."""
    return [sys.executable, "-P", "-m", module]
