"""Settings: frozen, typed, from TOML. An unknown key is an error that lists the known ones."""

from lucid.config.policy import PolicySettings

__all__ = ["PolicySettings"]
