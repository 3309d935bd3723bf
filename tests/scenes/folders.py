"""Where what belongs to a job of this user lies, below a common folder."""

import os

HOME = f"u{os.geteuid()}"
