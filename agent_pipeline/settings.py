"""Settings: `pipeline.toml`, overridden by `AGENT_PIPELINE_*` variables.

The file is looked for in the working directory and above it (`AGENT_PIPELINE_CONFIG` names another); relative paths in it are relative to it. A name that
no setting has is an error, in the file as in the environment: a misspelt setting must not be a silent default.
"""

import difflib
import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from agent_pipeline.errors import SettingsError
from agent_pipeline.traces.partitions import PartitionKey
from agent_pipeline.traces.reading import ReadingOptions

PREFIX = "AGENT_PIPELINE_"
EMBEDDED_BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_NOT_SETTINGS = {"CONFIG", "REAL_TRACES"}


class AgentSettings(BaseModel):
    """What the settings say about one agent (`[agents."project/agent"]`) beyond what its store knows."""

    model_config = ConfigDict(extra="forbid")

    system_prompt: str = Field("", description="Put before sessions that have no system message.")
    tools: str = Field("", description="A JSON file of OpenAI function schemas, for a source that records none.")
    task_pattern: str = Field("", description="Regular expression on the session id whose groups name the task.")
    task_field: str = Field("", description="Key of the session's context that names the task.")


class SplitSettings(BaseModel):
    """Shares of the tasks that are held out, for ever: change them before the first night, not after."""

    model_config = ConfigDict(extra="forbid")

    test: float = 0.2
    select: float = 0.1


class Settings(BaseSettings):
    """All settings of the pipeline, with their defaults."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid")

    store: str = Field("~/.omniagents", description="Session store: an omniagents home, or an OpenAI Agents SDK SQLite file.")
    lake: str = Field("lake", description="Where tables and models go: a folder, or an fsspec URL such as s3://bucket/lake.")
    cache: str = Field("~/.cache/agent-pipeline", description="Local folder for base models and copies of remote ones.")
    base_model: str = Field(EMBEDDED_BASE_MODEL, description="Hugging Face id or local path of the model to train.")
    trust_remote_code: bool = Field(False, description="Run the Python code that a base model's repository carries.")
    llama_cpp: str = Field("", description="A llama.cpp checkout to convert with, instead of the installed converter.")
    task_pattern: str = Field("", description="Default of agents.*.task_pattern.")
    task_field: str = Field("", description="Default of agents.*.task_field.")
    split: SplitSettings = SplitSettings()
    agents: dict[str, AgentSettings] = {}

    home: Path = Field(Path(), exclude=True, description="Folder that relative paths start from; set by load_settings.")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: Any, env_settings: Any, dotenv_settings: Any, file_secret_settings: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file()
        return (init_settings, env_settings, *([TomlConfigSettingsSource(settings_cls, file)] if file else []))

    @property
    def store_path(self) -> Path:
        return self._absolute(self.store)

    @property
    def cache_path(self) -> Path:
        return self._absolute(self.cache)

    @property
    def lake_url(self) -> str:
        return self.lake if "://" in self.lake else str(self._absolute(self.lake))

    def reading(self, key: PartitionKey) -> ReadingOptions:
        """How the sessions of an agent are read.

        Raises:
            SettingsError: its file of tools is missing or holds no list of schemas.
        """
        agent = self.agents.get(str(key), AgentSettings())
        return ReadingOptions(
            system_prompt=agent.system_prompt,
            tools=tuple(_tools(self._absolute(agent.tools))) if agent.tools else (),
            task_pattern=agent.task_pattern or self.task_pattern,
            task_field=agent.task_field or self.task_field,
        )

    def _absolute(self, path: str) -> Path:
        return (self.home / Path(path).expanduser()).resolve()


def load_settings(**overrides: Any) -> Settings:
    """The settings in force now; `overrides` (a test's, a notebook's) beat the environment, which beats the file.

    Raises:
        SettingsError: the file is missing or not TOML, or a setting is unknown or malformed.
    """
    _refuse_unknown_variables()
    file = config_file()
    try:
        return Settings(**({"home": file.parent if file else Path.cwd()} | overrides))
    except ValidationError as error:
        raise SettingsError(_sentence(error, file)) from error
    except ValueError as error:  # a TOML file that is none
        raise SettingsError(f"{file} is not a TOML file ({error}): mend it.") from error


def config_file() -> Path | None:
    """The settings file in force, or none.

    Raises:
        SettingsError: AGENT_PIPELINE_CONFIG names a file that is not there.
    """
    if named := os.environ.get(PREFIX + "CONFIG"):
        if not Path(named).is_file():
            raise SettingsError(f"AGENT_PIPELINE_CONFIG names {named}, which is no file: correct it or unset it.")
        return Path(named).resolve()
    here = Path.cwd()
    return next((folder / "pipeline.toml" for folder in (here, *here.parents) if (folder / "pipeline.toml").is_file()), None)


def _refuse_unknown_variables() -> None:
    known = {name.upper() for name in Settings.model_fields if name != "home"} | _NOT_SETTINGS
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).split("__")[0]
        if variable.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{variable} is no setting{_nearest(name, known, PREFIX)}.")


def _sentence(error: ValidationError, file: Path | None) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = set(Settings.model_fields) - {"home"} if len(first["loc"]) == 1 else {*AgentSettings.model_fields, *SplitSettings.model_fields}
        return f"{file or 'The environment'} has a setting {name!r} that does not exist{_nearest(str(first['loc'][-1]), known)}."
    return f"The setting {name!r} is wrong ({first['msg']}; got {first['input']!r}): correct it in {file or 'the environment'}."


def _nearest(name: str, known: set[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f": did you mean {prefix}{close[0]}?" if close else f"; there are {', '.join(sorted(prefix + each for each in known))}"


def _tools(path: Path) -> list[dict[str, Any]]:
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"The tools file {path} cannot be read ({error}): give a JSON list of OpenAI function schemas.") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise SettingsError(f"The tools file {path} holds no JSON list of OpenAI function schemas.")
    return tools
