from lucid.api import Replay as Replay
from lucid.api import Runs as Runs
from lucid.api import replay as replay

__version__: str
