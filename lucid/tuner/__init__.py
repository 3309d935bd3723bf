"""Replays a cluster's own past under other settings, and proposes a change where the evidence holds."""
