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


class TrafficSettings(Section):
    """An agent's share of real traffic (`[agents."project/agent".traffic]`)."""

    large_model: str = Field(
        default="",
        description=(
            "LiteLLM's name of the model that the agent uses today, such as openai/gpt-4.1. The "
            "champion replaces this model in a share of the traffic."
        ),
    )
    large_url: str = Field(
        default="",
        description=(
            "Base URL of the large model's server. If this setting is empty, the provider's own "
            "URL is used."
        ),
    )
    large_key: str = Field(
        default="",
        description=(
            "Name of the environment variable with the large model's API key. If this setting is "
            "empty, LiteLLM reads its usual variable for the provider."
        ),
    )
    champion_url: str = Field(
        default="http://127.0.0.1:8080/v1",
        description="Base URL of the server that serves the champion, such as llama-server.",
    )
    act: Literal["reads", "sure", "all"] = Field(
        default="all",
        description=(
            "Tool calls of the champion that the proxy accepts. reads accepts only calls of "
            "tools in the setting `reads`. sure also accepts calls that write, if the champion "
            "was confident in the whole turn. all accepts every call. If a turn is not accepted, "
            "the large model answers instead."
        ),
    )
    seconds: float = Field(
        default=30.0,
        gt=0,
        description="Maximum time that the champion may take for an answer, in seconds.",
    )
    log: str = Field(
        default="traffic-log",
        description=(
            "Folder to which the proxy logs the conversations. Add this folder to the setting "
            "`store`, so that the conversations become sessions."
        ),
    )


class AgentSettings(Section):
    """The settings of one agent (`[agents."project/agent"]`)."""

    system_prompt: str = Field(
        default="", description="System message for sessions whose record has no system message."
    )
    tools: str = Field(
        default="",
        description=(
            "JSON file with the agent's tools as OpenAI function schemas, for stores that do not "
            "record the tools."
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
    labels: str = Field(
        default="",
        description=(
            "File or folder with people's judgments of this agent's sessions. This setting "
            "replaces the general setting labels."
        ),
    )
    world: str = Field(
        default="auto",
        description=(
            "World in which a model does this agent's held-out tasks, as package.module:Class. "
            "The value replayed makes a world from the recorded sessions. The value auto makes "
            "this world only for kinds of tasks for which the recordings show that its verdicts "
            "can be trusted. If the setting is empty, no tasks are played."
        ),
    )
    reads: list[str] = Field(
        default=[],
        description=(
            "Tools of this agent that only read data. All its other tools count as tools that "
            "write. If the setting is empty, the pipeline infers from the sessions which tools "
            "write, and lists them in the metadata `tools` of the asset `tape`."
        ),
    )
    traffic: TrafficSettings = Field(
        default=TrafficSettings(),
        description="The agent's share of real traffic through LiteLLM's proxy.",
    )
    preconditions: dict[str, list[str]] = Field(
        default={},
        description=(
            "Preconditions of each tool. A precondition is a function that must pass before the "
            "agent may call the tool. Write it as package.module.function, or as a call of a "
            "built-in precondition."
        ),
    )
    train: Chain | None = Field(
        default=None,
        description="Training steps of this agent. These steps replace the general setting train.",
    )
    new_sessions: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Number of changed sessions that a nightly run of this agent needs. This setting "
            "replaces night.new_sessions."
        ),
    )
    compute: Compute = Field(
        default={},
        description=(
            "Place where this agent's heavy tasks run. This setting replaces the general setting "
            "compute."
        ),
    )
    preset: Preset = Field(
        default="",
        description="Preset of this agent. This setting replaces the general setting preset.",
    )
    assets: AssetValues = Field(
        default={},
        description=(
            "Settings of each asset, for this agent. These settings override the settings for "
            "all agents."
        ),
    )


class NightSettings(Section):
    """The time of nightly runs, and their limits (`[night]`).

    Agents that exceed a limit wait for the next night.
    """

    cron: str = Field(
        default="0 2 * * *",
        description=(
            "Time at which nightly runs start, as a cron expression. Dagster reads the "
            "expression when it loads the code."
        ),
    )
    timezone: str = Field(
        default="UTC", description="Time zone of night.cron, such as Europe/Berlin."
    )
    new_sessions: int = Field(
        default=1,
        ge=0,
        description=(
            "Number of sessions that must have changed since the last training run, before an "
            "agent is trained again. New, changed and deleted sessions count."
        ),
    )
    runs: int = Field(
        default=0,
        ge=0,
        description="Maximum number of agents that are trained per night. 0 means no limit.",
    )
    minutes: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of minutes after the start of the night in which training runs may start. 0 "
            "means no limit."
        ),
    )
    judge_requests: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum number of requests to the judge (the language model that judges sessions), "
            "for all runs of a night. 0 means no limit."
        ),
    )
    judge_tokens: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum number of tokens in the judge's prompts and answers, for all runs of a "
            "night. 0 means no limit."
        ),
    )
    judge_usd: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Maximum cost of the judge for all runs of a night, in US dollars. The cost of the "
            "judge is computed from judge.input_price and judge.output_price. 0 means no limit."
        ),
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
    """The language model that judges sessions (`[judge]`)."""

    endpoint: str = Field(
        default="",
        description=(
            "Base URL of an OpenAI-compatible server, such as https://host/v1. If this setting "
            "is empty, no language model judges sessions."
        ),
    )
    model: str = Field(default="", description="Name of the model on the server.")
    api_key_variable: str = Field(
        default="OPENAI_API_KEY",
        description="Name of the environment variable that contains the API key.",
    )
    rubric: str = Field(
        default="",
        description=(
            "File with a Jinja template of the judge's prompt. This template replaces the "
            "built-in template."
        ),
    )
    parameters: dict[str, Any] = Field(
        default={"temperature": 0, "max_tokens": 512},
        description="Parameters that are sent with every request.",
    )
    input_price: float = Field(
        default=0.0,
        ge=0,
        description="Price of the judge's prompts, in US dollars per million tokens.",
    )
    output_price: float = Field(
        default=0.0,
        ge=0,
        description="Price of the judge's answers, in US dollars per million tokens.",
    )
    concurrency: int = Field(
        default=4, ge=1, le=64, description="Number of requests that are sent at the same time."
    )
    retries: int = Field(
        default=4,
        ge=0,
        description="Number of retries after a temporary failure.",
    )
    seconds: float = Field(
        default=120.0, gt=0, description="Maximum time that an answer may take, in seconds."
    )
    max_characters: int = Field(
        default=200_000,
        ge=1000,
        description=(
            "Maximum length of a prompt, in characters. The model does not judge sessions that "
            "need a longer prompt."
        ),
    )

    least_precision: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description=(
            "Minimum precision of a trusted judge (a language model, or measures). The precision "
            "is the share of the judge's good verdicts with which people agree. On sessions that "
            "`agent-pipeline review` drew at random, the lower end of the precision's 90 % "
            "interval must reach this value. If the interval is lower, the judge's verdicts "
            "count as unverified. If the value is 0, a language model is trusted without labels."
        ),
    )

    def checked(self) -> "JudgeSettings":
        """Return these settings after validation.

        Raises:
            SettingsError: there is no endpoint or no model.
        """
        if not (self.endpoint and self.model):
            raise SettingsError(
                "The setting `decided_by` names llm, but no language model is configured: set "
                "`judge.endpoint` and `judge.model` in pipeline.toml."
            )
        return self


class RedactionSettings(Section):
    """Redaction: private data is replaced by pseudonyms before it is written (`[redaction]`)."""

    enabled: bool = Field(
        default=True, description="Whether private data is replaced by pseudonyms."
    )
    allow: list[str] = Field(
        default=[],
        description=(
            "Values that redaction must not replace: exact values, or regular expressions "
            "between slashes."
        ),
    )
    types: list[str] = Field(
        default=list(DEFAULT_TYPES),
        description=f"Kinds of private data to look for: {', '.join(KINDS)}.",
    )
    phone_regions: list[str] = Field(
        default=["US"],
        description=(
            "Countries whose telephone numbers are found even if they are written without a "
            "country code."
        ),
    )
    ner_model: str = Field(
        default="en_core_web_lg",
        description=(
            "Installed spaCy pipeline that finds values of the kinds PERSON and LOCATION. The "
            "pipeline is used only if the setting types contains one of these kinds."
        ),
    )
    surrogates: bool = Field(
        default=True,
        description=(
            "Whether models see made-up values instead of pseudonyms. Made-up values are closer "
            "to the real values that users write."
        ),
    )


class NotifySettings(Section):
    """Notifications about nightly runs, failures and decisions (`[notify]`)."""

    urls: list[str] = Field(
        default=[],
        description=(
            "Addresses to which notifications are sent, as Apprise URLs. $NAME in an address is "
            "replaced by the environment variable NAME. If the list is empty, no notifications "
            "are sent."
        ),
    )
    idle_days: int = Field(
        default=7,
        ge=1,
        description=(
            "Number of days without a training run after which a notification is sent. The "
            "notification is sent again after each further period of this length."
        ),
    )


class SplitSettings(Section):
    """The shares of the tasks that are held out permanently (`[split]`).

    Change them before the first night, and not afterwards.
    """

    test: float = Field(
        default=0.2,
        description=(
            "Share of the tasks that are in the split `test`. Models are evaluated on this split."
        ),
    )
    select: float = Field(
        default=0.1,
        description=(
            "Share of the tasks that are in the split `select`. The decision whether to promote "
            "a model uses this split."
        ),
    )
    leaks: Literal["refuse", "warn"] = Field(
        default="refuse",
        description=(
            "Action if held-out sessions look like trials of training tasks. refuse stops "
            "training, and warn only logs a warning."
        ),
    )

    @property
    def shares(self) -> dict[str, float]:
        """Return the shares of tasks for the splits `test` and `select`."""
        return {"test": self.test, "select": self.select}


class MixingSettings(Section):
    """The share of each agent in `multi_task_dataset` (`[mixing]`)."""

    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={"*": 1.0},
        description=(
            "Weight of each agent. The key is project/agent, or a pattern such as tau/*. Every "
            "agent that matches a pattern gets the weight of the pattern."
        ),
    )
    strategy: MixingStrategy = Field(
        default="weighted",
        description=(
            "Rule that gives each agent its share of the rows. weighted uses weights. balanced "
            "gives every agent the same share. proportional uses the number of rows that each "
            "agent has."
        ),
    )
    total: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of training rows. 0 uses as many rows as possible, without changing the "
            "agents' shares."
        ),
    )
    seed: int = Field(default=42, description="Seed for choosing and shuffling the rows.")
