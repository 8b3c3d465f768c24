"""The one limit of all waits for what has to happen.

A machine that stands still fails no test: the limit only ends a test that waits for what never
comes. A shorter limit stands where a time-out is the subject, on a client that does nothing else.
"""

from typing import Final

PATIENCE_S: Final = 120.0
"""A start of three nodes takes 20 s on a machine with a load of ten."""
