"""Where the store's file lies: on a disk of this host, or on a file system that other hosts have as well.

SQLite's write-ahead log works through memory that all its users share, so of one host only. Where several hosts
have the file, it keeps a rollback journal instead, and locks by the file system's own locks (NFS 4 has them).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["journal_of", "network_file_system"]

_NETWORK = frozenset(
    ("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
     "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "vxfs", "wekafs")
)  # fmt: skip
_FUSE = ("fuse.beegfs", "fuse.ceph", "fuse.gluster", "fuse.juicefs", "fuse.moosefs", "fuse.sshfs", "fuse.weka")
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that *path* lies on, if it is one that several hosts may have; else empty, also where
    that cannot be told."""
    try:
        place = path.resolve()
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        words = line.split(" ")
        if "-" not in words[6:] or len(words) < 10:
            continue
        point = Path(words[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if (point == place or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), words[words.index("-", 6) + 1]
    return kind if kind in _NETWORK or kind.startswith(_FUSE) else ""


def journal_of(path: Path, shared: bool) -> str:
    """The journal mode for a store at *path*; ``shared``: said to be on several hosts."""
    return "TRUNCATE" if shared or network_file_system(path.parent) else "WAL"
