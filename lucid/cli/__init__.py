"""The command line, lucidctl.

Read in this order: ``main``, ``everyday_commands``, ``console``, ``options``, ``progress``, ``examples``. Folders:
``live``, ``job``, ``replay``, ``learn``, ``install``.
Others import ``main``, ``console``, ``options``.
"""
