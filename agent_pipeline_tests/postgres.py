"""A PostgreSQL of the test's own: a cluster in a folder that goes with it, on a port of the loopback."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from agent_pipeline_tests.ports import free_port


@contextmanager
def cluster(user: str, password: str) -> Iterator[int]:
    """The port of a server with this user and an empty database of the same name."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    programs, owner = (
        found[-1].parent,
        "postgres" if os.geteuid() == 0 else None,
    )  # it refuses to run as root
    folder, port = Path(mkdtemp(prefix="agent-pipeline-postgres-")), free_port()

    def call(program: str, *arguments: str) -> None:
        command, environment = (
            [str(programs / program), *arguments],
            os.environ | {"PGPASSWORD": password},
        )
        subprocess.run(
            command, user=owner, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL
        )

    (folder / "password").write_text(password, encoding="utf-8")
    if owner:
        account = pwd.getpwnam(owner)
        for path in (folder, folder / "password"):
            os.chown(path, account.pw_uid, account.pw_gid)
    try:
        where = ["--pgdata", str(folder / "data")]
        call(
            "initdb",
            *where,
            f"--username={user}",
            "--auth=scram-sha-256",
            f"--pwfile={folder / 'password'}",
            "--no-sync",
        )
        options = f"-p {port} -h 127.0.0.1 -k {folder} -F"
        call(
            "pg_ctl", "start", *where, "--wait", "--log", str(folder / "log"), "--options", options
        )
        try:
            call("createdb", "--host=127.0.0.1", f"--port={port}", f"--username={user}", user)
            yield port
        finally:
            call("pg_ctl", "stop", *where, "--mode=immediate")
    finally:
        shutil.rmtree(folder)
