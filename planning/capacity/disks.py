"""The disk and the memory of one node.

Owns what is retained, what files add to it, and what a node wants in memory.
"""

import math
from typing import Final

from planning.capacity.calibration import Calibration
from planning.capacity.demand import Demand
from planning.capacity.figure import CapacityFigure, amount, counted, figures, number
from planning.capacity.formats import FormatSizes
from planning.capacity.traffic import MessageSizes

IN_FLIGHT_SIZE_BYTES: Final = 256 << 20
"""Half received batches of clients: the bound of the framed port, which is the largest."""


def disk_figures(
    demand: Demand, sizes: MessageSizes, formats: FormatSizes, group_count: int
) -> list[CapacityFigure]:
    """Return the figures of one node's disk; the last one is the size to buy."""
    count = demand.average_msgs_per_s * demand.retention_s / group_count
    retained = count * sizes.log
    file_size = formats.file_size_bytes
    files = math.ceil(retained / file_size) + 1 + formats.prepared_file_count
    log = files * file_size
    derived = count * sizes.derived
    if demand.key_count:
        derived += formats.key_file_size_bytes
    used = log + derived
    ratio = formats.disk_warn_ratio
    of_derived = f"{counted(count, 'messages')} x {number(sizes.derived)} B"
    if demand.key_count:
        key_file = amount(formats.key_file_size_bytes, "B")
        of_derived += f" + one key index of {key_file} that is not full"
    return figures(
        "disk",
        node_retained_size_bytes=(
            retained,
            f"{number(demand.average_msgs_per_s)} msg/s x {amount(demand.retention_s, 's')} x "
            f"{number(sizes.log)} B / {counted(group_count, 'groups')}",
        ),
        node_log_size_bytes=(
            log,
            f"{amount(retained, 'B')} in whole files of {amount(file_size, 'B')} + 1 that is still "
            f"to expire + {formats.prepared_file_count} made ahead",
        ),
        node_derived_size_bytes=(derived, of_derived),
        node_disk_size_bytes=(
            used / ratio,
            f"({amount(log, 'B')} of log + {amount(derived, 'B')} derived) / {ratio} of the disk, "
            "from which on operators are warned",
        ),
    )


def memory_figures(
    demand: Demand,
    sizes: MessageSizes,
    formats: FormatSizes,
    calibration: Calibration,
    group_count: int,
) -> list[CapacityFigure]:
    """Return the figures of one node's memory; the last one is the sum."""
    slots = formats.key_slot_count * formats.key_slot_size_bytes if demand.key_count else 0
    own = calibration.node_memory_size_bytes + IN_FLIGHT_SIZE_BYTES + slots
    rate = demand.peak_msgs_per_s / group_count
    pages = rate * demand.read_memory_s * (sizes.log + sizes.derived)
    pages += formats.file_size_bytes * formats.prepared_file_count
    if demand.key_count:
        pages += formats.key_file_size_bytes
    return figures(
        "memory",
        node_process_size_bytes=(
            own,
            f"process {amount(calibration.node_memory_size_bytes, 'B')} + "
            f"{amount(IN_FLIGHT_SIZE_BYTES, 'B')} in flight + {amount(slots, 'B')} of key slots",
        ),
        node_page_cache_size_bytes=(
            pages,
            f"{number(rate)} msg/s x {amount(demand.read_memory_s, 's')} x "
            f"{number(sizes.log + sizes.derived)} B + {formats.prepared_file_count} files made "
            "ahead" + (" + the key index that is written" if demand.key_count else ""),
        ),
        node_memory_size_bytes=(
            own + pages,
            f"process {amount(own, 'B')} + pages {amount(pages, 'B')}",
        ),
    )
