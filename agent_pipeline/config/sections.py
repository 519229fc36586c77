"""The tables of the settings file, such as `[agents."project/agent"]` and `[judge]`.

The options of assets stand in `config.assets`.
"""

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from agent_pipeline.config.compute import Compute
from agent_pipeline.config.methods import AssetValues, Chain
from agent_pipeline.datasets.mixing import MixingStrategy
from agent_pipeline.errors import SettingsError
from agent_pipeline.options import Section
from agent_pipeline.redaction import DEFAULT_TYPES
from agent_pipeline.redaction.kinds import KINDS

Preset = Literal["", "smoke", "cpu", "gpu"]


class AgentSettings(Section):
    """The settings of one agent (`[agents."project/agent"]`)."""

    system_prompt: str = Field(
        default="", description="Put before sessions that have no system message."
    )
    tools: str = Field(
        default="",
        description="A JSON file of OpenAI function schemas, for a source that records none.",
    )
    task_pattern: str = Field(
        default="", description="Regular expression on the session id whose groups name the task."
    )
    task_field: str = Field(
        default="", description="Key of the session's context that names the task."
    )
    labels: str = Field(
        default="",
        description="People's judgments of this agent's sessions, instead of the general labels.",
    )
    world: str = Field(
        default="", description="A world to play this agent's tasks in, package.module:Class."
    )
    train: Chain | None = Field(
        default=None, description="This agent's chain of trainings, instead of the general one."
    )
    new_sessions: int | None = Field(
        default=None, ge=0, description="Instead of night.new_sessions."
    )
    compute: Compute = Field(
        default={}, description="Where this agent's tasks run, instead of the general place."
    )
    preset: Preset = Field(
        default="", description="This agent's preset, instead of the general one."
    )
    assets: AssetValues = Field(
        default={},
        description="Settings of this agent's assets, by asset: they override the general ones.",
    )


class NightSettings(Section):
    """When a night is, and what it may cost (`[night]`); 0 means no limit.

    What does not fit waits for the next night.
    """

    cron: str = Field(
        default="0 2 * * *",
        description="When the schedule looks at the store, as cron has it; read when Dagster loads "
        "the code.",
    )
    timezone: str = Field(default="UTC", description="Of cron, as Europe/Berlin.")
    new_sessions: int = Field(
        default=1,
        ge=0,
        description="Sessions to train on that must have come, changed or gone since the last "
        "training.",
    )
    runs: int = Field(default=0, ge=0, description="Agents that get a run.")
    minutes: int = Field(
        default=0, ge=0, description="Time after which no training of the night begins."
    )
    judge_requests: int = Field(
        default=0,
        ge=0,
        description="Questions to the language model that judges, of all runs together.",
    )
    judge_tokens: int = Field(default=0, ge=0, description="Tokens of it, asked and answered.")
    judge_usd: float = Field(
        default=0.0,
        ge=0,
        description="US dollars of it, by judge.input_price and judge.output_price.",
    )

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"there is no time zone {name!r}") from error
        return name


class JudgeSettings(Section):
    """The language model that may judge (`[judge]`); without an endpoint there is none."""

    endpoint: str = Field(
        default="", description="Base URL of an OpenAI-compatible server, https://host/v1."
    )
    model: str = Field(default="", description="The model's name there.")
    api_key_variable: str = Field(
        default="OPENAI_API_KEY", description="The environment variable that holds the key."
    )
    rubric: str = Field(
        default="",
        description="A Jinja template of the question, instead of the one that comes with the "
        "pipeline.",
    )
    parameters: dict[str, Any] = Field(
        default={"temperature": 0, "max_tokens": 512}, description="Sent with every request."
    )
    input_price: float = Field(default=0.0, ge=0, description="US dollars a million tokens asked.")
    output_price: float = Field(
        default=0.0, ge=0, description="US dollars a million tokens answered."
    )
    concurrency: int = Field(default=4, ge=1, le=64, description="Requests at a time.")
    retries: int = Field(
        default=4,
        ge=0,
        description="How often a request that failed for a passing reason is made again.",
    )
    seconds: float = Field(default=120.0, gt=0, description="How long an answer may take.")
    max_characters: int = Field(
        default=200_000, ge=1000, description="Longer questions are not asked."
    )

    def checked(self) -> "JudgeSettings":
        """Itself. Raises SettingsError where there is no model to ask."""
        if not (self.endpoint and self.model):
            raise SettingsError(
                "decided_by names llm, but there is none to ask: set judge.endpoint and "
                "judge.model in pipeline.toml."
            )
        return self


class RedactionSettings(Section):
    """Private data that becomes pseudonyms before anything is written (`[redaction]`)."""

    enabled: bool = Field(default=True, description="Look for private data at all.")
    allow: list[str] = Field(
        default=[],
        description="Values that stay: exact ones, or regular expressions between slashes.",
    )
    types: list[str] = Field(
        default=list(DEFAULT_TYPES), description=f"Kinds to look for: {', '.join(KINDS)}."
    )
    phone_regions: list[str] = Field(
        default=["US"],
        description="Countries whose telephone numbers are known without + and prefix.",
    )
    ner_model: str = Field(
        default="en_core_web_lg",
        description="Installed spaCy pipeline that finds PERSON and LOCATION, if types has them.",
    )
    surrogates: bool = Field(
        default=True,
        description="Models read made-up values in place of the pseudonyms of the tables, as users "
        "write real ones.",
    )


class NotifySettings(Section):
    """Who is told what happens (`[notify]`); without an address nobody is."""

    urls: list[str] = Field(
        default=[],
        description="Addresses as Apprise writes them; $NAME is read from the environment.",
    )
    idle_days: int = Field(
        default=7,
        ge=1,
        description="Tell when an agent was not trained for so many days, and again after as many.",
    )


class SplitSettings(Section):
    """The shares of the tasks that are held out permanently.

    Change them before the first night, and not afterwards.
    """

    test: float = 0.2
    select: float = 0.1
    leaks: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="Refuse to train, or only warn, if held-out sessions look like trials of "
        "trained tasks that nobody names.",
    )

    @property
    def shares(self) -> dict[str, float]:
        """The two shares."""
        return {"test": self.test, "select": self.select}


class MixingSettings(Section):
    """What multi_task_dataset is made of (`[mixing]`)."""

    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={"*": 1.0},
        description="By project/agent, or by a pattern such as tau/*: each agent that fits has "
        "this weight.",
    )
    strategy: MixingStrategy = Field(
        default="weighted",
        description="weighted, balanced, or proportional to what the agents have.",
    )
    total: int = Field(
        default=0,
        ge=0,
        description="Rows to train on; 0: as many as there can be with every agent in its exact "
        "share.",
    )
    seed: int = Field(default=42, description="Another seed draws others, in another order.")
