"""``python -m lucid.node``: the same as ``lucid-sampler``."""

from __future__ import annotations

import sys

from lucid.node.command import main

sys.exit(main())
