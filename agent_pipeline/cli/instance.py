"""Dagster's home: a folder of the project's by default, never a lost temporary one."""

import os
import re
from collections.abc import Iterable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.config.settings import config_file
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey

if TYPE_CHECKING:
    import dagster as dg

WORKSPACE = str(files("agent_pipeline").joinpath("workspace.yaml"))
"""The file that tells Dagster's web server and daemon which code location to load."""
POSTGRES = "DAGSTER_POSTGRES_URL"
_STORAGE = f"storage:\n  postgres:\n    postgres_url:\n      env: {POSTGRES}\n"


def dagster_home() -> Path:
    """`DAGSTER_HOME`, else `.dagster` beside `pipeline.toml` (or in the working directory); made, with a `dagster.yaml`, if missing.

    A `dagster.yaml` that is made while `DAGSTER_POSTGRES_URL` is set keeps Dagster's tables there.

    Raises:
        SettingsError: the variable and the file that is there contradict each other, or dagster-postgres is missing.
    """
    file = config_file()
    home = Path(os.environ.get("DAGSTER_HOME") or (file.parent if file else Path.cwd()) / ".dagster").expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    yaml, postgres = home / "dagster.yaml", os.environ.get(POSTGRES)
    if not yaml.exists():
        text = files("agent_pipeline").joinpath("dagster.yaml").read_text(encoding="utf-8")
        yaml.write_text(f"{text}\n{_STORAGE}" if postgres else text, encoding="utf-8")
    reads = re.search(rf"^[^#\n]*\b{POSTGRES}\b", yaml.read_text(encoding="utf-8"), re.MULTILINE)
    if bool(postgres) != bool(reads):  # else the runs of one home would come to lie in two databases
        found = "is set, but {} does not read it" if postgres else "is not set, but {} reads it"
        raise SettingsError(f"{POSTGRES} {found.format(yaml)}: change one of them (docs/operate.md, PostgreSQL).")
    if postgres:
        if not find_spec("dagster_postgres"):
            raise SettingsError(f"{POSTGRES} needs the package dagster-postgres: pip install 'agent-pipeline[postgres]'.")
        # The driver that it brings: SQLAlchemy 2.1 would take another one for an address that names none.
        os.environ[POSTGRES] = re.sub("^postgres(ql)?://", "postgresql+psycopg2://", postgres)
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def open_instance() -> "dg.DagsterInstance":
    """The instance that the UI uses as well. The limits of its pools hold from the first run on: Dagster's queue does not heed a pool's
    default limit in the pass in which it first meets the pool.

    Raises:
        SettingsError: of `dagster_home`; PostgreSQL cannot be reached, or refuses.
    """
    import dagster as dg
    from filelock import FileLock

    from agent_pipeline.defs.specs import CPU_HEAVY, GPU

    # Two processes that make the tables of a new home at once fail in each other's half-made ones.
    with FileLock(dagster_home() / ".opening.lock"):
        try:
            instance = dg.DagsterInstance.get()
        except Exception as error:
            if not type(error).__module__.startswith(("dagster_postgres", "sqlalchemy")):
                raise
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise SettingsError(f"PostgreSQL at {POSTGRES} does not open Dagster's tables: {reason}") from error
        for pool in {GPU, CPU_HEAVY} - {each.name for each in instance.event_log_storage.get_pool_limits()}:
            instance.event_log_storage.initialize_concurrency_limit_to_default(pool)
    return instance


def make_known(keys: Iterable[PartitionKey]) -> None:
    """Add agents to the partitions that Dagster knows."""
    from agent_pipeline.defs.partitions import AGENTS

    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", [str(key) for key in keys])
