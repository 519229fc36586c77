"""A PostgreSQL server of the tests' own: a new cluster in a temporary folder, on a socket there, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder of a running server's socket; its superuser is `postgres`, and nobody is asked for a password."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parents[1].name))
    initdb = str(programs[-1]) if programs else shutil.which("initdb")
    if not initdb:
        pytest.skip("no PostgreSQL server is installed (initdb is neither in /usr/lib/postgresql nor on the path)")
    run_as: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:  # a socket's path may have 107 characters
        folder = Path(name)
        if os.geteuid() == 0:  # the server refuses to run as root
            user = next((each for each in ("postgres", "nobody") if _exists(each)), None)
            if user is None or not shutil.which("runuser"):
                pytest.skip("PostgreSQL cannot run as root, and there is no runuser with a user postgres or nobody")
            run_as = ["runuser", "-u", user, "--"]
            shutil.chown(folder, user)
        control = str(Path(initdb).with_name("pg_ctl"))
        made = [initdb, "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=20"
        subprocess.run([*run_as, *made], check=True, capture_output=True, cwd="/")
        start = [control, "-D", f"{folder}/data", "-l", f"{folder}/log", "-o", options, "-w", "start"]
        subprocess.run([*run_as, *start], check=True, stdout=subprocess.DEVNULL, cwd="/")
        try:
            yield folder
        finally:
            stop = [control, "-D", f"{folder}/data", "-m", "immediate", "-w", "stop"]
            subprocess.run([*run_as, *stop], check=True, stdout=subprocess.DEVNULL, cwd="/")


@pytest.fixture
def database(postgres_server: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Runs statements in a database of the test's own and gives its URL."""
    import psycopg

    name = f"test_{abs(hash(request.node.nodeid))}"
    admin = f"postgresql://postgres@/postgres?host={postgres_server}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = f"postgresql://postgres@/{name}?host={postgres_server}"

    def run(*statements: str) -> str:
        with psycopg.connect(url) as connection:
            for statement in statements:
                connection.execute(statement)
        return url

    yield run
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
