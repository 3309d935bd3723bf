"""What lucid_run.py does, in a job, as its user. No dependency; Python 3.6 or later."""

import sys


class Refused(Exception):
    """The job cannot be started; the text says why and what helps."""


def tell(text):
    """Say it on stderr, which is the job's own."""
    sys.stderr.write("lucid-run: " + text + "\n")
    sys.stderr.flush()
