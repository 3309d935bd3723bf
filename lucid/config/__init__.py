"""Settings: frozen, typed, from TOML. An unknown key is an error that lists the known ones."""

from lucid.config.live import (
    DaemonSettings,
    Mode,
    ModelSettings,
    SlurmSettings,
    TunerSettings,
)
from lucid.config.policy import (
    LIVE_DEFAULTS,
    BackfillSettings,
    FairnessSettings,
    MuriSettings,
    OptimusSettings,
    OverheadSettings,
    PackingSettings,
    PolicySettings,
    PolluxSettings,
    ProfilingSettings,
    ReservationSettings,
    TiresiasSettings,
    with_defaults,
)
from lucid.config.whole import (
    Settings,
    library_folder,
    load_settings,
    own_job_log,
    profiles_folder,
    settings_from,
)

__all__ = [
    "LIVE_DEFAULTS",
    "BackfillSettings",
    "DaemonSettings",
    "FairnessSettings",
    "Mode",
    "ModelSettings",
    "MuriSettings",
    "OptimusSettings",
    "OverheadSettings",
    "PackingSettings",
    "PolicySettings",
    "PolluxSettings",
    "ProfilingSettings",
    "ReservationSettings",
    "Settings",
    "SlurmSettings",
    "TiresiasSettings",
    "TunerSettings",
    "library_folder",
    "load_settings",
    "own_job_log",
    "profiles_folder",
    "settings_from",
    "with_defaults",
]
