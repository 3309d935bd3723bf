"""Few doors: what a module offers exists, is its own, and says what it is for."""

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
def test_a_module_offers_what_exists_documented_and_all_that_is_public(name: str) -> None:
    module = load(name)
    assert module.__doc__, f"{name} does not say what it is for"
    offered = getattr(module, "__all__", None)
    is_package = hasattr(module, "__path__")
    assert offered is not None or is_package, f"{name} has no __all__"
    for item in offered or ():
        assert hasattr(module, item), f"{name}.{item} does not exist"
        assert not item.startswith("_"), f"{name}.{item} is private"
        value = getattr(module, item)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("lucid"):
            assert value.__doc__, f"{name}.{item} does not say what it is for"
    assert len(set(offered or ())) == len(offered or ()), f"{name} offers something twice"
    own = {
        item
        for item, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not item.startswith("_")
    }
    assert own <= set(offered or ()), f"{name} neither offers nor hides {sorted(own - set(offered or ()))}"
