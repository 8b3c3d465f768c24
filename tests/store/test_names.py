"""The names that `store` offers to programs that embed the engine."""

import importlib
import subprocess
import sys

import pytest

import store
from tests.patience import PATIENCE_S


def test_every_name_is_there_and_is_the_one_of_its_module() -> None:
    for name in store.__all__:
        assert name in dir(store)
        member = getattr(store, name)
        if name in store._MODULE_OF:
            module = importlib.import_module(f"store.{store._MODULE_OF[name]}")
            assert member is getattr(module, name)


def test_another_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="'Stoer'"):
        _ = store.Stoer


def test_the_engine_is_loaded_when_it_is_first_used() -> None:
    program = (
        "import sys, store; store.errors.StoreError; assert 'store.store' not in sys.modules; "
        "store.Store"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
