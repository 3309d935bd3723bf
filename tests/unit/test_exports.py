"""Each module, and what is public of it, says what it is for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import lucid


def every_module() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(lucid.__path__, "lucid.") if not m.name.endswith("__main__"))


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("lucid"):
            raise
        pytest.skip(f"needs {missing.name}")


@pytest.mark.parametrize("name", every_module())
def test_a_module_and_what_is_public_of_it_have_docstrings(name: str) -> None:
    module = load(name)
    assert module.__doc__, f"{name} does not say what it is for"
    silent = [
        item
        for item, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not item.startswith("_")
        and not value.__doc__
    ]
    assert silent == []
    offered = getattr(module, "__all__", ())
    assert [item for item in offered if not hasattr(module, item)] == []
