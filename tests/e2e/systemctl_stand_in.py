#!/usr/bin/python3
"""What a chroot without systemd has in its place: /usr/local/bin/systemctl of the install guide's test.

Of a unit it honours User, EnvironmentFile, StateDirectory, RuntimeDirectory, Type=notify (a start waits for READY=1),
ExecStart and ExecStopPost; it tells a restart by list-jobs, and knows is-active and is-enabled. It does not sandbox,
watch, restart or time anything, and does nothing about timers.
slurmctld and slurmd, which the testbed starts itself, are ended and started the same way.
"""

import contextlib
import os
import pathlib
import pwd
import signal
import socket
import subprocess
import sys
import time

UNITS = (pathlib.Path("/etc/systemd/system"), pathlib.Path("/usr/lib/systemd/system"))
STATE = pathlib.Path("/srv/stand-in")


def unit(name: str) -> dict[str, list[str]]:
    """The settings of a unit."""
    found_in = [folder / (name if "." in name else f"{name}.service") for folder in UNITS]
    path = next((path for path in found_in if path.exists()), None)
    if path is None:
        sys.exit(f"systemctl: {name}: there is no such unit")
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key.strip(), []).append(value.strip())
    return found


def environment(settings: dict[str, list[str]]) -> dict[str, str]:
    """As systemd gives it to a service, not the caller's."""
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    for name in settings.get("EnvironmentFile", []):
        path = pathlib.Path(name.lstrip("-"))
        if path.exists():
            env.update(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return env


def as_user(settings: dict[str, list[str]]) -> dict[str, object]:
    """Popen's arguments."""
    who = pwd.getpwnam(settings.get("User", ["root"])[0])
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": [], "cwd": "/", "env": environment(settings)}


def start(name: str) -> None:
    settings = unit(name)
    if name.endswith(".timer"):
        return
    who = pwd.getpwnam(settings.get("User", ["root"])[0])
    for key, base in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
        for folder in settings.get(key, []):
            path = pathlib.Path(base, folder)
            path.mkdir(exist_ok=True)
            os.chown(path, who.pw_uid, who.pw_gid)
    for command in settings.get("ExecStartPre", []):  # "+": as root, "-": whatever comes of it
        assert command.startswith("+-"), command
        subprocess.run(command[2:].split(), check=False)
    STATE.mkdir(exist_ok=True)
    ear_path = STATE / f"{name}.notify"
    ear_path.unlink(missing_ok=True)
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ear.bind(str(ear_path))
    ear_path.chmod(0o777)
    options = as_user(settings)
    options["env"] = {**options["env"], "NOTIFY_SOCKET": str(ear_path)}
    with (STATE / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            settings["ExecStart"][0].split(),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options,
        )  # fmt: skip
    (STATE / f"{name}.pid").write_text(str(process.pid))
    ear.settimeout(1)
    until = time.monotonic() + 120
    while settings.get("Type") == ["notify"]:
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(f"systemctl: {name} did not come up:\n{(STATE / f'{name}.log').read_text()}")
        try:
            if b"READY=1" in ear.recv(4096):
                break
        except TimeoutError:
            continue


def stop(name: str) -> None:
    path = STATE / f"{name}.pid"
    if path.exists():
        end(int(path.read_text()))
        path.unlink()
        settings = unit(name)
        for command in settings.get("ExecStopPost", []):
            subprocess.run(command.split(), check=False, **as_user(settings))


@contextlib.contextmanager
def queued(name: str, kind: str):
    """Seen by ``list-jobs`` for so long."""
    STATE.mkdir(exist_ok=True)
    path = STATE / f"{name}.job"
    path.write_text(f"1 {name}.service {kind} running\n")
    yield
    path.unlink()


def end(pid: int) -> None:
    """Politely, and wait."""
    try:
        os.kill(pid, signal.SIGTERM)
        for _ in range(600):
            os.kill(pid, 0)
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.1)
    except (ProcessLookupError, FileNotFoundError):
        return
    sys.exit(f"systemctl: {pid} does not end")


def restart_slurm(name: str) -> None:
    """slurmctld, or the slurmd of every node of this machine."""
    nodes = (
        [None]
        if name == "slurmctld"
        else sorted(path.split(".")[-2] for path in map(str, pathlib.Path("/run/slurm").glob("slurmd.*.pid")))
    )
    for node in nodes:
        path = pathlib.Path(f"/run/slurm/{name}.pid" if node is None else f"/run/slurm/slurmd.{node}.pid")
        end(int(path.read_text()))
        user = {"user": "slurm", "group": "slurm"} if node is None else {}
        words = [f"/usr/sbin/{name}", "-D"] + ([] if node is None else ["-N", node])
        with pathlib.Path(f"/var/log/slurm/{name}.out").open("ab") as log:
            subprocess.Popen(
                words, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **user
            )
    until = time.monotonic() + 60
    while (
        subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode and time.monotonic() < until
    ):
        time.sleep(0.2)
    time.sleep(1)


def is_so(name: str, verb: str) -> bool:
    """Does it run, or is it to start with the machine?"""
    if verb == "is-enabled":
        return (STATE / f"{name}.enabled").exists()
    path = STATE / f"{name}.pid"
    return path.exists() and pathlib.Path(f"/proc/{path.read_text()}").exists()


def note_enabled(name: str, verb: str) -> None:
    """As systemd does it with a link."""
    if verb in ("enable", "disable"):
        unit(name)
        STATE.mkdir(exist_ok=True)
        path = STATE / f"{name}.enabled"
        path.touch() if verb == "enable" else path.unlink(missing_ok=True)


def main(words: list[str]) -> None:
    now = "--now" in words
    verb, *names = [word for word in words if not word.startswith("-")]
    if verb == "list-jobs":
        for name in names:
            path = STATE / f"{name.removesuffix('.service')}.job"
            sys.stdout.write(path.read_text() if path.exists() else "")
        return
    if verb in ("is-active", "is-enabled"):
        sys.exit(0 if all(is_so(name, verb) for name in names) else 3)
    for name in names:
        note_enabled(name, verb)
        if name in ("slurmctld", "slurmd"):
            restart_slurm(name)
        elif verb == "restart":
            with queued(name, "restart"):
                stop(name)
            start(name)
        elif verb in ("start", "enable") and (now or verb == "start"):
            start(name)
        elif verb in ("stop", "disable") and (now or verb == "stop"):
            stop(name)
    if verb == "daemon-reload":
        for path in (path for folder in UNITS for path in folder.glob("lucid*.[st]*")):
            assert unit(path.name), path


if __name__ == "__main__":
    main(sys.argv[1:])
