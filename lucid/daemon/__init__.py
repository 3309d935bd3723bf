"""``lucidd``: puts the parts together and turns the cycle. ``process`` is its process, ``build`` makes it from its
settings, ``turn`` is one turn, ``leader`` the lease, ``cycles`` what is done under one lease, ``report`` what it
tells of itself."""

from lucid.daemon.build import Parts, open_store
from lucid.daemon.process import main
from lucid.daemon.turn import Daemon

__all__ = ["Daemon", "Parts", "main", "open_store"]
