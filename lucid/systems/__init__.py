"""The published schedulers that Lucid is compared with: their mathematics, free of any simulator.

One package a system: :mod:`~lucid.systems.muri`, :mod:`~lucid.systems.pollux`,
:mod:`~lucid.systems.optimus` and :mod:`~lucid.systems.elastic`. Ids such as ``M9`` or ``P13`` in the
docstrings name the mechanism in the list that ``docs/systems/`` goes through.
"""
