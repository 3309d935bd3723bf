"""``report.html``: one self-contained page that compares the runs of a simulation."""

from lucid.simulator.report.page import write_report

__all__ = ["write_report"]
