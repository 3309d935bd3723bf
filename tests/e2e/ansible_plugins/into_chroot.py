"""Ansible's way into a testbed: every command by chroot, every file by its path below the root."""

from __future__ import annotations

import shutil
import subprocess

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: into_chroot
short_description: into the chroot of a testbed
description: The host's address is the folder.
options:
  remote_addr:
    description: the root of the testbed
    vars:
      - name: ansible_host
"""
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp"}


class Connection(ConnectionBase):
    transport = "into_chroot"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def close(self):
        self._connected = False

    def _below(self, path):
        return f"{self.get_option('remote_addr')}/{path.lstrip('/')}"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = subprocess.run(
            ["chroot", self.get_option("remote_addr"), "/bin/sh", "-c", cmd],
            input=in_data, capture_output=True, check=False, env=_ENV, cwd="/",
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        super().put_file(in_path, out_path)
        self._copy(in_path, self._below(out_path))

    def fetch_file(self, in_path, out_path):
        super().fetch_file(in_path, out_path)
        self._copy(self._below(in_path), out_path)

    @staticmethod
    def _copy(source, target):
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise AnsibleError(f"{source} -> {target}: {error}") from error
