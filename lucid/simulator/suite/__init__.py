"""Every policy on every trace at hand, published figures beside ours: ``lucidctl compare --suite``."""

from lucid.simulator.suite.cells import Cell, cell_path, run_cells
from lucid.simulator.suite.page import suite_data, write_suite
from lucid.simulator.suite.traces import Entry, traces_at_hand

__all__ = ["Cell", "Entry", "cell_path", "run_cells", "suite_data", "traces_at_hand", "write_suite"]
