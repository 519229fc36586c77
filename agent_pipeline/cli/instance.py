"""Dagster's home folder, which by default belongs to the project and is not temporary."""

import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.config.settings import config_file
from agent_pipeline.errors import SettingsError, without_credentials
from agent_pipeline.keys import PartitionKey

if TYPE_CHECKING:
    import dagster as dg

WORKSPACE = str(files("agent_pipeline").joinpath("workspace.yaml"))
"""The file that tells Dagster's web server and daemon which code location they load."""
POSTGRES = "DAGSTER_POSTGRES_URL"
_STORAGE = f"storage:\n  postgres:\n    postgres_url:\n      env: {POSTGRES}\n"


def find_home() -> Path | None:
    """Return Dagster's home if a command has used it, or None. Nothing is created."""
    home = _name_home()
    return home if (home / "dagster.yaml").exists() else None


def _name_home() -> Path:
    file = config_file()
    return (
        Path(os.environ.get("DAGSTER_HOME") or (file.parent if file else Path.cwd()) / ".dagster")
        .expanduser()
        .resolve()
    )


def dagster_home() -> Path:
    """Return Dagster's home, and create it with a `dagster.yaml` if it is missing.

    The home is `DAGSTER_HOME`, or `.dagster` next to `pipeline.toml` (or in the working directory).
    If `DAGSTER_POSTGRES_URL` is set, a new `dagster.yaml` keeps Dagster's tables there.

    Raises:
        SettingsError: the folder cannot be written to, the variable contradicts the existing
            file, or
            dagster-postgres is not installed.
    """
    home = _name_home()
    yaml, postgres = home / "dagster.yaml", os.environ.get(POSTGRES)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not yaml.exists():
            text = files("agent_pipeline").joinpath("dagster.yaml").read_text(encoding="utf-8")
            yaml.write_text(f"{text}\n{_STORAGE}" if postgres else text, encoding="utf-8")
        written = yaml.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"Dagster's home {home} cannot be used ({error.strerror}, {error.filename}): set "
            "DAGSTER_HOME to a folder that this user can write to, on a disk with free space."
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{yaml} is not a text file ({error}): correct the file, or delete it to get the "
            "default file back."
        ) from error
    reads = re.search(rf"^[^#\n]*\b{POSTGRES}\b", written, re.MULTILINE)
    if bool(postgres) != bool(
        reads
    ):  # else the runs of one home would come to lie in two databases
        problem = "is set, but {} does not read it" if postgres else "is not set, but {} reads it"
        raise SettingsError(
            f"The environment variable {POSTGRES} {problem.format(yaml)}: change the variable or "
            "the file (docs/how-to/operate.md, PostgreSQL)."
        )
    if postgres:
        if not find_spec("dagster_postgres"):
            raise SettingsError(
                f"The environment variable {POSTGRES} needs the package dagster-postgres: run "
                "`pip install 'agent-pipeline[postgres]'`."
            )
        name_postgres_driver()
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def name_postgres_driver() -> None:
    """Add the database driver of dagster-postgres to an address in `DAGSTER_POSTGRES_URL`.

    For an address without a driver, SQLAlchemy 2.1 would use another driver.
    """
    if postgres := os.environ.get(POSTGRES):
        os.environ[POSTGRES] = re.sub("^postgres(ql)?://", "postgresql+psycopg2://", postgres)


def open_instance() -> "dg.DagsterInstance":
    """Open the Dagster instance that the UI also uses, with the limits of its pools.

    Dagster's queue ignores a pool's default limit the first time that it meets the pool.

    Raises:
        SettingsError: as for `dagster_home`; or `dagster.yaml` is wrong, or the database cannot
            be reached, is
            locked or damaged, or refuses.
    """
    import dagster as dg
    from filelock import FileLock

    from agent_pipeline.defs.specs import CPU_HEAVY, GPU

    home = dagster_home()
    # Two processes that make the tables of a new home at once fail in each other's half-made ones.
    try:
        with FileLock(home / ".opening.lock"), _quiet_retries():
            instance = dg.DagsterInstance.get()
            for _ in (
                instance.run_launcher,
                instance.run_coordinator,
                instance.scheduler,
                instance.compute_log_manager,
            ):
                pass  # Dagster loads the classes that dagster.yaml names when they are first used
            for pool in {GPU, CPU_HEAVY} - {
                limit.name for limit in instance.event_log_storage.get_pool_limits()
            }:
                instance.event_log_storage.initialize_concurrency_limit_to_default(pool)
    except Exception as error:
        if (sentence := _opening_failure(home, error)) is None:
            raise
        raise SettingsError(sentence) from error
    return instance


@contextmanager
def _quiet_retries() -> Iterator[None]:
    """Hide Dagster's warning about each attempt to reach a database.

    The error that follows names the problem once.
    """
    root, repeats = logging.getLogger(), "Retrying failed database connection"

    def is_other(record: logging.LogRecord) -> bool:
        return repeats not in record.getMessage()

    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _opening_failure(home: Path, error: Exception) -> str | None:
    """Return a sentence for an error of Dagster's instance that the user can fix.

    Return None for any other error.
    """
    module = type(error).__module__
    if isinstance(error, OSError):
        return (
            f"Dagster's home {home} cannot be used ({error}): set DAGSTER_HOME to a folder that "
            "this user can write to, on a disk with free space."
        )
    if module.startswith(("dagster_postgres", "sqlalchemy", "psycopg2", "sqlite3")):
        return database_sentence(home, error)
    if module.startswith(("dagster", "yaml")) or isinstance(error, ImportError):
        details = getattr(
            error, "errors", None
        )  # of DagsterInvalidConfigError, whose first line says nothing
        reason = details[0].message if details else " ".join(str(error).split())
        return (
            f"{home / 'dagster.yaml'} is wrong ({reason[:300].rstrip('.')}): correct the file, or "
            "delete it to get the default file back."
        )
    return None


def database_sentence(home: Path, error: Exception) -> str:
    """Return a sentence for a failure of the database that stores Dagster's runs."""
    reason = str(getattr(error, "orig", None) or error.__cause__ or error).partition("\n")[0]
    if os.environ.get(POSTGRES):
        return (
            f"The PostgreSQL server of {POSTGRES} cannot open Dagster's tables: "
            f"{without_credentials(reason)}"
        )
    if "locked" in reason:
        return (
            f"Dagster's database in {home} is locked: end the other agent-pipeline or dagster "
            "process that uses it, then try again."
        )
    if "full" in reason or "disk I/O" in reason:
        return (
            f"Dagster's database in {home} cannot be written ({reason}): free some disk space, or "
            "set DAGSTER_HOME to another disk."
        )
    if "readonly" in reason or "unable to open" in reason:
        return (
            f"Dagster's database in {home} cannot be written ({reason}): set DAGSTER_HOME to a "
            f"folder that this user may write."
        )
    damaged = (
        ", ".join(str(file) for file in sorted(home.rglob("*.db")) if not _is_sound(file)) or home
    )
    return (
        f"Dagster's database {damaged} is damaged ({reason}): restore it from a backup, or move "
        "it away to start with an empty history of runs. Tables and models are in the lake, so "
        "they are not lost."
    )


def _is_sound(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def make_known(keys: Iterable[PartitionKey]) -> None:
    """Add agents as partitions in Dagster."""
    from agent_pipeline.defs.partitions import AGENTS

    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", [str(key) for key in keys])
