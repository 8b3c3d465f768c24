"""The node of a test of the broker: opened on the test's own loop, closed at its end."""

from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.node.broker_fakes import node_at


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Hand a test an open node, as `node_with` of `broker_fakes` says."""
    test, config = request.node.obj, getattr(request, "param", {})

    @wraps(test)
    async def with_open_node(**arguments: Any) -> None:
        async with node_at(tmp_path, **config) as opened:
            await test(**{**arguments, "node": opened})

    request.node.obj = with_open_node
