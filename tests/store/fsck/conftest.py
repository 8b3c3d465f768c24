"""Small stores of both containers, made once, to be damaged as copies."""

import shutil
from pathlib import Path

import pytest

from store.config import StoreConfig
from tests.store.fsck_stores import fsck_config, make_store

CONTAINERS = ("commit_log", "ledger")


@pytest.fixture(params=CONTAINERS)
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return fsck_config(request.param)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One closed store of each container."""
    roots = {}
    for container in CONTAINERS:
        roots[container] = tmp_path_factory.mktemp(container) / "store"
        make_store(roots[container], fsck_config(container))
    return roots


@pytest.fixture
def root(made: dict[str, Path], config: StoreConfig, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[config.container], tmp_path / "copy"))
