"""Adds `--rewrite`: replace the expected output of transcripts by what happens now, for review."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite transcripts; read the diff")
