"""The command line, ``lucidctl``: ``main`` finds a command; all commands use ``console`` and ``options``.

Folders: ``jobs`` for users of the queue, ``site`` for administrators, ``replay`` for traces, ``learn`` for models and
tuning."""
