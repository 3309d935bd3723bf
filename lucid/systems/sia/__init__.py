"""Sia (SOSP '23): which job gets which GPUs of which type, as an integer linear program (decision 0037).

After the paper; its published code was read for what the paper leaves open, and nothing of it is here.
"""

from lucid.systems.sia.choose import Choice, choose
from lucid.systems.sia.configurations import Bundle, Kind, bundles_of, kinds_of
from lucid.systems.sia.place import Placed, place
from lucid.systems.sia.utility import utilities

__all__ = ["Bundle", "Choice", "Kind", "Placed", "bundles_of", "choose", "kinds_of", "place", "utilities"]
