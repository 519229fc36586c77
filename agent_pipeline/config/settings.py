"""The settings tree: `pipeline.toml`, overridden by `AGENT_PIPELINE_*` variables.

The file is looked for in the working directory and above it (`AGENT_PIPELINE_CONFIG` names
another). Relative paths, in the file and in variables, start from its folder. An empty variable
counts as not set. Unknown settings are rejected, with a suggestion: a misspelt setting must not
silently leave a default in place.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.compute import (
    ALL,
    STEP_NAMES,
    Compute,
    KubernetesSettings,
    Place,
    RaySettings,
    SlurmSettings,
)
from agent_pipeline.config.methods import AssetValues, Chain, MethodSettings
from agent_pipeline.config.sections import (
    AgentSettings,
    JudgeSettings,
    MixingSettings,
    NightSettings,
    NotifySettings,
    Preset,
    RedactionSettings,
    SplitSettings,
    TrafficSettings,
)
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import PartitionError, SettingsError
from agent_pipeline.evaluation.worlds import PROVEN, REPLAYED
from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.options import did_you_mean, problem
from agent_pipeline.plugins import set_module_folder
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Tool
from agent_pipeline.sources import Location, TraceSource, open_sources, parse_location, readers
from agent_pipeline.sources.agents.omniagents import own_store
from agent_pipeline.sources.formats.limits import DEFAULT_MB, set_largest_record
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline.training.chain import STEPS, find_candidate
from agent_pipeline.training.config import Step

PREFIX = "AGENT_PIPELINE_"
_NOT_SETTINGS = {"CONFIG", "REAL_TRACES"}
_NESTED = {
    "SPLIT",
    "AGENTS",
    "METHODS",
    "REDACTION",
    "JUDGE",
    "NOTIFY",
    "NIGHT",
    "MIXING",
    "ASSETS",
    "RAY",
    "KUBERNETES",
    "SLURM",
}


class Settings(BaseSettings):
    """All settings of the pipeline, with their defaults."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, extra="forbid"
    )
    other_names: ClassVar[Mapping[str, str]] = {group: f"assets.{group}" for group in ASSETS}
    """Names that a user may try by mistake, with the place of the correct setting."""

    store: Annotated[str | list[str], NoDecode] = Field(
        default_factory=own_store,
        description=(
            "Store of the agent's sessions, or a list of stores: a path, a URL, "
            "or name:path to choose the reader."
        ),
    )
    sources: list[str] = Field(
        default=[], description="Your own readers of stores, each as package.module:Class."
    )
    largest_record_mb: int = Field(
        default=DEFAULT_MB,
        ge=1,
        description=(
            "Maximum memory for one record of a store, in MB. If a file is compressed, a record "
            "may take 16 times its compressed size if that is more. Records that need more "
            "memory are left out and listed in a note."
        ),
    )
    lake: str = Field(
        default="lake",
        description=(
            "Folder or bucket for all tables and models that the pipeline writes. A bucket is an "
            "fsspec URL, such as s3://bucket/lake."
        ),
    )
    lake_options: dict[str, Any] = Field(
        default={},
        description=(
            "Options of the lake's bucket, such as endpoint_url, key and secret. If a value is "
            "$NAME, it is read from the environment variable NAME."
        ),
    )
    cache: str = Field(
        default="~/.cache/agent-pipeline",
        description="Local folder for base models, and for copies of files of a remote lake.",
    )
    base_model: str = Field(
        default=EMBEDDED, description="Hugging Face id or local path of the model to train."
    )
    trust_remote_code: bool = Field(
        default=False, description="Whether the Python code in a base model's repository may run."
    )
    llama_cpp: str = Field(
        default="",
        description=(
            "Folder of a llama.cpp checkout, whose converter is used instead of the installed "
            "converter."
        ),
    )
    task_pattern: str = Field(
        default="",
        description=(
            "Regular expression that finds the name of the task in the session id. The name is "
            "the text of the groups, or the whole match if the expression has no group."
        ),
    )
    task_field: str = Field(
        default="", description="Key in the session's context whose value is the name of the task."
    )
    keep_exports: int = Field(
        default=3,
        ge=0,
        description=(
            "Number of earlier exports per agent that `agent-pipeline prune` "
            "keeps, in addition to the champion and the latest export."
        ),
    )
    ui_hosts: list[str] = Field(
        default=[],
        description=(
            "Host names or addresses under which browsers open the UI, such as the name of a "
            "login proxy. localhost and the machine's own names are always accepted."
        ),
    )
    pages_url: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description=(
            "Address under which browsers open the pages of `agent-pipeline pages`, such as "
            "http://localhost:3010. If this setting is set, the assets in Dagster link to these "
            "pages."
        ),
    )
    labels: str = Field(
        default="",
        description=(
            "File with people's judgments of sessions (CSV or JSONL, with session_id, judgment "
            "and reason), or a folder of such files."
        ),
    )
    key_prefix: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_]+(/[A-Za-z0-9_]+)*)?$",
        description=(
            "Prefix of all asset keys in Dagster, such as team/agents. The names of jobs, "
            "schedules, sensors and resources get the prefix too, so that they do not clash with "
            "another project."
        ),
    )
    redaction: RedactionSettings = RedactionSettings()
    judge: JudgeSettings = JudgeSettings()
    notify: NotifySettings = NotifySettings()
    night: NightSettings = NightSettings()
    split: SplitSettings = SplitSettings()
    mixing: MixingSettings = MixingSettings()
    train: Chain = Field(
        default=["sft"],
        description=(
            f"Training steps of an agent, in this order: {', '.join(STEPS)}. The "
            "last adapter is the candidate."
        ),
    )
    compute: Compute = Field(
        default={},
        description=(
            "Place where training and other heavy tasks run: local (the default), ray, "
            "kubernetes or slurm. To choose a place for each asset, use a table."
        ),
    )
    shared: str = Field(
        default="",
        description=(
            "Folder that all machines mount at the same path. If the lake is "
            "inside it, tasks on other machines can use the lake."
        ),
    )
    ray: RaySettings = RaySettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    slurm: SlurmSettings = SlurmSettings()
    preset: Preset = Field(
        default="",
        description=(
            "Set of values for a purpose: smoke (a quick test with few steps and few rows), cpu "
            "(the defaults) or gpu (larger batches, longer rows, more rows)."
        ),
    )
    assets: AssetValues = Field(default={}, description="Settings of each asset, for all agents.")
    agents: dict[str, AgentSettings] = Field(
        default={}, description="Settings of single agents, by partition such as shop/support."
    )
    methods: dict[str, MethodSettings] = Field(
        default={}, description="Training methods of your own for method_comparison, by id."
    )

    _variables: dict[str, Any] = PrivateAttr(default={})
    """The settings in environment variables, as a tree. `load_settings` sets this value."""
    _home: Path = PrivateAttr(default_factory=Path.cwd)
    """The folder to which relative paths refer. `load_settings` sets this value."""

    @field_validator("store", mode="before")
    @classmethod
    def _one_or_several(cls, store: Any) -> Any:
        """Return one store or several stores as a list.

        A list in an environment variable is JSON.
        """
        if isinstance(store, str) and store.lstrip().startswith("["):
            try:
                store = json.loads(store)
            except ValueError as error:
                raise ValueError(f"it is not a JSON list: {error}") from error
        several = (
            isinstance(store, list)
            and bool(store)
            and all(isinstance(part, str) and part for part in store)
        )
        if not several and not (isinstance(store, str) and store):
            raise ValueError("it is neither a path nor a list of paths")
        return store

    @field_validator("agents")
    @classmethod
    def _keys(cls, agents: dict[str, AgentSettings]) -> dict[str, AgentSettings]:
        """Refuse settings for an agent name that cannot exist, because they would never apply."""
        for key in agents:
            try:
                parse_key(key)
            except PartitionError as error:
                raise ValueError(str(error).rstrip(".")) from error
        return agents

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file()
        return (
            init_settings,
            env_settings,
            *([TomlConfigSettingsSource(settings_cls, file)] if file else []),
        )

    def variable(self, *path: str) -> str:
        """Return the environment variable that sets a path of the tree, or an empty text."""
        value: object = self._variables
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None or not path:
            return ""
        return PREFIX + ("__".join(path).upper() if path[0] == "assets" else path[0].upper())

    @property
    def stores(self) -> list[Location]:
        """Return the stores to read, with absolute paths, each store once."""
        named = [self.store] if isinstance(self.store, str) else self.store
        return list(dict.fromkeys(parse_location(location, self._home) for location in named))

    @property
    def cache_path(self) -> Path:
        return self._absolute(self.cache)

    @property
    def lake_url(self) -> str:
        return self.lake if "://" in self.lake else str(self._absolute(self.lake))

    def open_lake(self) -> Lake:
        """Open the lake of these settings.

        Raises:
            SettingsError: the lake's address is wrong.
        """
        return Lake(self.lake_url, self.cache_path, self.lake_options)

    def open_store(self) -> TraceSource:
        """Return the reader of the session store, or of several stores as one.

        Raises:
            StoreError: a store cannot be read.
            SettingsError: a reader does not exist.
        """
        return open_sources(self.stores, readers(self.sources), self.cache_path / "servers")

    def chain(self, key: PartitionKey) -> list[Step]:
        """Return the training steps of an agent's nightly run, in order."""
        return self.agents.get(str(key), AgentSettings()).train or self.train

    def new_sessions(self, key: PartitionKey) -> int:
        """Return how many sessions must have changed before an agent is trained again.

        New sessions and sessions that are gone count too.
        """
        agent_value = self.agents.get(str(key), AgentSettings()).new_sessions
        return self.night.new_sessions if agent_value is None else agent_value

    def world(self, key: PartitionKey | None) -> str:
        """Return the agent's own world (`package.module:Class`), or an empty text."""
        world = self.agents.get(str(key), AgentSettings()).world
        return "" if world in (REPLAYED, PROVEN) else world

    def episodes_world(self, key: PartitionKey | None) -> str:
        """Return the setting `world`: the agent's own world, `replayed` or `auto`.

        Return an empty text if no tasks are played.
        """
        return self.agents.get(str(key), AgentSettings()).world

    def reads(self, key: PartitionKey | None) -> list[str]:
        """Return the tools that only look things up, or an empty list to infer them."""
        return self.agents.get(str(key), AgentSettings()).reads

    def traffic(self, key: PartitionKey | None) -> TrafficSettings:
        """Return the settings of an agent's share of real traffic."""
        return self.agents.get(str(key), AgentSettings()).traffic

    def traffic_log(self, key: PartitionKey) -> Path:
        """Return the folder to which the proxy logs an agent's conversations."""
        return self._absolute(self.traffic(key).log)

    @property
    def folder(self) -> Path:
        """Return the folder from which relative paths start, and in which modules may lie."""
        return self._home

    def preconditions(self, key: PartitionKey | None) -> dict[str, list[str]]:
        """Return the preconditions of an agent's tools, as the settings name them, by tool."""
        return self.agents.get(str(key), AgentSettings()).preconditions

    def place(self, asset: str, key: PartitionKey | None) -> Place:
        """Return the place where the tasks of an agent's asset, or of a step of `adapter`, run."""
        names = [asset, *(["adapter"] if asset in STEP_NAMES else []), ALL]
        for table in (self.agents.get(str(key), AgentSettings()).compute, self.compute):
            for name in names:
                if name in table:
                    return table[name]
        return "local"

    @property
    def shares_lake(self) -> bool:
        """True if other machines can open the lake.

        Other machines can open a lake that is in a bucket or in the folder `shared`.
        """
        lake = self.open_lake()
        return not lake.is_local or bool(
            self.shared and Path(lake.root.path).is_relative_to(self._absolute(self.shared))
        )

    def candidate(self, key: PartitionKey) -> Artifact:
        """Return the adapter that is evaluated and exported, from the last step of the chain.

        Raises:
            DataError: a step of the chain was never trained.
        """
        return find_candidate(self.open_lake(), key, self.chain(key))

    def labels_path(self, key: PartitionKey) -> Path | None:
        """Return the file or folder of people's labels for an agent, or None."""
        labels = self.agents.get(str(key), AgentSettings()).labels or self.labels
        return self._absolute(labels) if labels else None

    @property
    def default_labels_path(self) -> Path:
        """Return the folder for the labels of a review if the setting `labels` is empty."""
        return self._absolute("labels")

    @property
    def labels_paths(self) -> list[Path]:
        """All files and folders that may contain people's judgments."""
        named = [self.labels, *(agent.labels for agent in self.agents.values())]
        return sorted({self._absolute(labels) for labels in named if labels})

    @property
    def rubric_path(self) -> Path | None:
        """Return the path of the user's rubric, or `None` to use the pipeline's own rubric."""
        return self._absolute(self.judge.rubric) if self.judge.rubric else None

    @property
    def llama_cpp_path(self) -> str:
        """Return the llama.cpp checkout that converts models, or empty for the installed one."""
        return str(self._absolute(self.llama_cpp)) if self.llama_cpp else ""

    @property
    def split_sizes(self) -> SplitSizes:
        """Return the shares of the tasks that are held out. Raises SettingsError."""
        return SplitSizes(self.split.test, self.split.select).validated()

    @property
    def redaction_options(self) -> RedactionOptions:
        options = self.redaction
        return RedactionOptions(
            options.enabled,
            tuple(options.allow),
            tuple(options.types),
            tuple(options.phone_regions),
            options.ner_model,
        )

    def reading(self, key: PartitionKey) -> ReadingOptions:
        """Return the options for reading the sessions of an agent.

        Raises:
            SettingsError: its file of tools is missing or holds no list of schemas.
        """
        agent = self.agents.get(str(key), AgentSettings())
        return ReadingOptions(
            system_prompt=agent.system_prompt,
            tools=tuple(read_tools(self._absolute(agent.tools))) if agent.tools else (),
            task_pattern=agent.task_pattern or self.task_pattern,
            task_field=agent.task_field or self.task_field,
            redaction=self.redaction_options,
        )

    def _absolute(self, path: str) -> Path:
        return (self._home / Path(path).expanduser()).resolve()


def load_settings(**overrides: Any) -> Settings:
    """Load the settings. `overrides` override the environment, which overrides the file.

    Raises:
        SettingsError: the file is missing or is not TOML, or a setting is unknown or malformed.
    """
    _refuse_unknown_variables()
    file = config_file()
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(problem(error, Settings, where=_where(file))) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{file} is not a valid TOML file ({error}): fix the syntax."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read ({error}): check the permissions of the file."
        ) from error
    except ValueError as error:  # JSON in a variable that is none
        raise SettingsError(
            f"An environment variable has a wrong value ({error}): correct the variable."
        ) from error
    set_largest_record(settings.largest_record_mb)
    set_module_folder(file.parent if file else None)
    settings._home = file.parent if file else Path.cwd()
    settings._variables = EnvSettingsSource(Settings)()
    _check_assets(settings, file)
    return settings


def cached_settings() -> Settings:
    """Return the settings, which are loaded again only if the file or a variable has changed.

    For code that runs once per asset while the code location loads. The result is shared, so it
    must not be changed.

    Raises:
        SettingsError: as `load_settings`.
    """
    file = config_file()
    status = file.stat() if file else None
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith(PREFIX)))
    written = (status.st_mtime_ns, status.st_size, status.st_ino) if status else None
    return _settings_read_at(Path.cwd(), file, written, variables)


@lru_cache(maxsize=1)
def _settings_read_at(*_state: object) -> Settings:
    return load_settings()


def config_file() -> Path | None:
    """Return the path of the settings file in use, or None.

    Raises:
        SettingsError: AGENT_PIPELINE_CONFIG names a file that does not exist.
    """
    if named := os.environ.get(PREFIX + "CONFIG"):
        if not Path(named).is_file():
            raise SettingsError(
                f"AGENT_PIPELINE_CONFIG names {named}, which is not a file: correct or unset the "
                "variable."
            )
        return Path(named).resolve()
    here = Path.cwd()
    return next(
        (
            folder / "pipeline.toml"
            for folder in (here, *here.parents)
            if (folder / "pipeline.toml").is_file()
        ),
        None,
    )


def _refuse_unknown_variables() -> None:
    known = {name.upper() for name in Settings.model_fields} | _NOT_SETTINGS
    for variable in sorted(os.environ):
        if not variable.upper().startswith(PREFIX):  # their case does not matter to pydantic either
            continue
        name, nested, _ = variable.upper().removeprefix(PREFIX).partition("__")
        if name not in known or (nested and name not in _NESTED):
            variables = [PREFIX + known_name for known_name in known]
            raise SettingsError(
                f"{variable} is not a setting{did_you_mean(PREFIX + name, variables)}"
            )


def _check_assets(settings: Settings, file: Path | None) -> None:
    """Check all names and values of asset settings, both for all agents and for single agents."""
    tables = {"assets": settings.assets} | {
        f'agents."{key}".assets': agent.assets for key, agent in settings.agents.items()
    }
    tables |= {f"methods.{name}.assets": method.assets for name, method in settings.methods.items()}
    for table, assets in tables.items():
        for asset, values in assets.items():
            if asset not in ASSETS:
                raise SettingsError(
                    f"There is no asset {asset!r} with settings ([{table}.{asset}] in "
                    f"{_where(file)}){did_you_mean(asset, ASSETS)}"
                )
            ASSETS[asset].validated(values, f"{table}.{asset}.", _where(file))


def _where(file: Path | None) -> str:
    return f"{file} or the environment" if file else "the environment"


def read_tools(path: Path) -> list[Tool]:
    """Return the tool schemas of a file.

    Raises:
        SettingsError: The file is missing or holds no list of schemas.
    """
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(tools, ensure_ascii=False, allow_nan=False).encode(
            "utf-8"
        )  # what the lake could not hold
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"The tools file {path} cannot be read ({error}): write a JSON list of OpenAI "
            "function schemas into the file."
        ) from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise SettingsError(
            f"The tools file {path} does not contain a JSON list of OpenAI function schemas: "
            "write such a list into the file."
        )
    return tools
