"""``report.html``: one self-contained page that compares the runs of a simulation."""
