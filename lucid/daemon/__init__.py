"""``lucidd``: puts the parts together and turns the cycle. ``process`` is its process, ``build`` makes it from its
settings, ``loop`` turns it, ``leader`` the lease, ``cycles`` what is done under one lease, ``report`` what it
tells of itself."""

from lucid.daemon.build import Parts, open_store
from lucid.daemon.loop import Daemon
from lucid.daemon.process import main

__all__ = ["Daemon", "Parts", "main", "open_store"]
