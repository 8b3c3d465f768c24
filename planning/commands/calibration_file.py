"""Calibration files: read for a plan, written by `qlog bench calibrate`.

Owns the file, its limit, and the conservative figures without one.
"""

import os
from functools import partial
from typing import Any, Final

import click

from planning.capacity.calibration import AppendPoint, Calibration
from qlog.output import print_text, to_json
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.foreign_json import read_json
from quorumlog.user_files import UserFileError, read_user_file

FILE_SIZE_BYTES_MAX: Final = 1 << 20

BUILT_IN: Final = Calibration(
    source="built in: 1/4 to 1/2 of what a quiet machine of 2 cores did (docs/planning.md)",
    is_measured=False,
    appends=(
        AppendPoint(1, 1024, 2_000, 200e-6, 600e-6),
        AppendPoint(1, 65_536, 700, 400e-6, 1_200e-6),
        AppendPoint(100, 100, 900, 500e-6, 1_100e-6),
        AppendPoint(100, 1024, 400, 800e-6, 2_000e-6),
    ),
    read_cpu_s=4e-6,
    sync_s=2e-3,
    disk_write_bytes_per_s=100e6,
    disk_read_bytes_per_s=100e6,
    catch_up_bytes_per_s=50e6,
    rebuild_bytes_per_s=50e6,
    failover_s=1.5,
    failover_s_max=3.0,
    node_memory_size_bytes=256 << 20,
)


def load(path: str | None) -> Calibration:
    """Return the calibration of a file; without one the built-in figures.

    Raises CliError for a file that is none, or cannot be read.
    """
    if path is None:
        return BUILT_IN
    try:
        document: Any = read_json(read_user_file(path, FILE_SIZE_BYTES_MAX), is_unique=True)
        return Calibration.from_json(document)
    except UserFileError as error:
        raise CliError(f"{path} is no calibration", error.what, error.do, ExitCode.USAGE) from None
    except ValueError as error:  # CalibrationError is a ValueError.
        raise CliError(
            f"{path} is no calibration",
            str(error),
            "give the file that qlog bench calibrate wrote, or write a new one with: qlog bench "
            "calibrate NEW.json",
            ExitCode.USAGE,
        ) from None


def tell_origin(calibration: Calibration) -> None:
    """Note on stderr, below the result, that nothing was measured, if so."""
    if not calibration.is_measured:
        note = (
            "note: nothing was measured, so rates and times rest on conservative figures; run qlog "
            "bench calibrate on such a host, and give its file with --calibration"
        )
        click.get_current_context().call_on_close(partial(print_text, note, err=True))


def check_place(path: str) -> None:
    """Raise OSError before a measurement, rather than after, if the file cannot be written."""
    draft = f"{path}.draft"
    with open(draft, "w", encoding="utf-8"):
        os.unlink(draft)


def save(calibration: Calibration, path: str) -> None:
    """Write a calibration; the file is whole or the old one. Raises OSError."""
    draft = f"{path}.draft"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(to_json(calibration.to_json(), indent=2) + "\n")
    os.replace(draft, path)
