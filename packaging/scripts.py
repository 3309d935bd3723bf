"""What runs as root when a package comes or goes: the same words in a deb and in an rpm, behind a head of each."""

from __future__ import annotations

from staging import REPO, Target

__all__ = ["DEB", "RPM", "UNITS", "script"]

UNITS = {
    "lucid": ("lucidd.service", "lucid-release.timer", "lucid-web.service"),
    "lucid-node": ("lucid-sampler.service",),
}
DEB = {
    "preinst": ("before", "case $1 in install) phase=install ;; upgrade) phase=upgrade ;; *) phase=abort ;; esac"),
    "postinst": (
        "after",
        'case $1 in configure) phase=install && [ -z "$2" ] || phase=upgrade ;; *) phase=abort ;; esac',
    ),
    "prerm": ("leave", "case $1 in remove) phase=remove ;; upgrade) phase=upgrade ;; *) phase=abort ;; esac"),
    "postrm": (
        "gone",
        "case $1 in purge) phase=purge ;; remove) phase=remove ;; upgrade) phase=upgrade ;; *) phase=abort ;; esac",
    ),
}
"""By maintainer script: which part, and how it knows what happens."""
RPM = {
    "pre": ("before", 'if [ "$1" -gt 1 ]; then phase=upgrade; else phase=install; fi'),
    "post": ("after", 'if [ "$1" -gt 1 ]; then phase=upgrade; else phase=install; fi'),
    "preun": ("leave", 'if [ "$1" -gt 0 ]; then phase=kept; else phase=remove; fi'),
    "postun": ("gone", 'if [ "$1" -gt 0 ]; then phase=upgrade; else phase=remove; fi'),
}
"""An rpm has no purge. In an upgrade the old version's scripts run last, so they leave compiled modules alone."""


def script(target: Target, package: str, part: str, head: str) -> str:
    """One script, ready to be run; empty where there is nothing to do."""
    folder = REPO / "packaging/scripts"
    if part == "before" and package != "lucid":
        return ""
    text = (folder / f"lucid.{part}").read_text(encoding="utf-8")
    release = (folder / "lucid.release").read_text(encoding="utf-8") if package == "lucid" else ""
    purge = (folder / f"{package}.purge").read_text(encoding="utf-8")
    words = {
        "RELEASE": release.rstrip("\n"),
        "PURGE": purge.rstrip("\n"),
        "SCHEMA": str(target.schema),
        "VERSION": target.version,
        "PREFIX": f"/usr/lib/{package}",
        "LIBRARIES": f"python{target.python}" if package == "lucid" else "python3",
        "SYSUSERS": f"/usr/lib/sysusers.d/{package}.conf",
        "TMPFILES": f"/usr/lib/tmpfiles.d/{package}.conf",
        "INVOKE": "deb-systemd-invoke" if target.family == "deb" else "systemctl",
        "UNITS": " ".join(UNITS[package]),
    }
    if part == "gone" and target.family == "rpm":
        text = text.partition('if [ "$phase" = purge ]')[0]
    for key, value in words.items():
        text = text.replace(f"@{key}@", value)
    return f"{head}\n{text}"
