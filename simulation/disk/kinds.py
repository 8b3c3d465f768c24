"""The kinds of disk faults that a plan may have, and how often each is drawn."""

from typing import Final

WHOLE: Final = {"die_at_call": 5, "power_at_call": 5, "disk_slow": 2, "disk_full": 2}
"""Kinds after which a disk has all that it promised, and how often one is drawn."""
FAILING: Final = {"disk_hang": 1, "sync_fails": 1, "calls_fail": 2}
"""Kinds by which a node may end itself; it can be started again."""
HARMING: Final = {"disk_damage": 3, "disk_lies": 1}
"""Kinds after which a disk lacks what it promised: of a minority of the nodes only."""
ALL: Final = {**WHOLE, **FAILING, **HARMING}
