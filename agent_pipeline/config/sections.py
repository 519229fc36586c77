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
        description="Today's model of the agent, as LiteLLM names it, such as openai/gpt-4.1.",
    )
    large_url: str = Field(
        default="",
        description="Base URL of the large model's server. Empty means the provider's own URL.",
    )
    large_key: str = Field(
        default="",
        description=(
            "Name of the environment variable with the large model's API key. Empty means the "
            "variable that LiteLLM reads for the provider."
        ),
    )
    champion_url: str = Field(
        default="http://127.0.0.1:8080/v1",
        description="Base URL of the server of the champion, such as llama-server.",
    )
    act: Literal["reads", "sure", "all"] = Field(
        default="all",
        description=(
            "Calls of the champion that are accepted. reads: only calls of tools in `reads`. sure: "
            "also writes in a turn that is confident as a whole. all: all calls. The large model "
            "answers instead of a turn that is not accepted."
        ),
    )
    seconds: float = Field(
        default=30.0,
        gt=0,
        description="Longest time that the champion may take for an answer, in seconds.",
    )
    log: str = Field(
        default="traffic-log",
        description="Folder to which the proxy logs the conversations, for the setting `store`.",
    )


class AgentSettings(Section):
    """The settings of one agent (`[agents."project/agent"]`)."""

    system_prompt: str = Field(
        default="", description="System message of sessions that have no system message."
    )
    tools: str = Field(
        default="",
        description=(
            "JSON file of OpenAI function schemas, if the store does not record the agent's tools."
        ),
    )
    task_pattern: str = Field(
        default="",
        description=(
            "Regular expression on the session id. The groups of the expression, "
            "or the whole match, name the task."
        ),
    )
    task_field: str = Field(
        default="", description="Key in the session's context whose value names the task."
    )
    labels: str = Field(
        default="",
        description=(
            "People's judgments of this agent's sessions, instead of the general setting labels."
        ),
    )
    world: str = Field(
        default="auto",
        description=(
            "World in which this agent's held-out tasks are played, as package.module:Class. "
            "replayed makes a world from the recorded sessions. auto does so for the kinds of "
            "tasks for which the recordings prove its verdicts. Empty: no tasks are played."
        ),
    )
    reads: list[str] = Field(
        default=[],
        description=(
            "Tools of this agent that only look things up. All its other tools write. Empty means "
            "that the tools are inferred from the sessions (metadata `tools` of the asset `tape`)."
        ),
    )
    traffic: TrafficSettings = Field(
        default=TrafficSettings(),
        description="The agent's share of real traffic through LiteLLM's proxy.",
    )
    preconditions: dict[str, list[str]] = Field(
        default={},
        description=(
            "Preconditions by tool: functions that must pass before the agent may call the tool, "
            "each as package.module.function or as a call of a built-in precondition."
        ),
    )
    train: Chain | None = Field(
        default=None,
        description="Training steps of this agent, instead of the general setting train.",
    )
    new_sessions: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Number of changed sessions that a nightly run needs, instead of night.new_sessions."
        ),
    )
    compute: Compute = Field(
        default={},
        description=(
            "Place where this agent's heavy tasks run, instead of the general setting compute."
        ),
    )
    preset: Preset = Field(
        default="", description="Preset of this agent, instead of the general setting preset."
    )
    assets: AssetValues = Field(
        default={},
        description=(
            "Settings of this agent's assets, by asset. These settings override "
            "the settings of all agents."
        ),
    )


class NightSettings(Section):
    """The time of nightly runs, and their limits (`[night]`).

    Agents that exceed a limit wait for the next night.
    """

    cron: str = Field(
        default="0 2 * * *",
        description=(
            "Cron expression of the time when the schedule starts nightly runs. "
            "Dagster reads it when it loads the code."
        ),
    )
    timezone: str = Field(
        default="UTC", description="Time zone of night.cron, such as Europe/Berlin."
    )
    new_sessions: int = Field(
        default=1,
        ge=0,
        description=(
            "Number of training sessions that must be new, changed or gone since "
            "the last training run."
        ),
    )
    runs: int = Field(
        default=0,
        ge=0,
        description=("Largest number of agents that are trained per night. 0 means no limit."),
    )
    minutes: int = Field(
        default=0,
        ge=0,
        description=(
            "Length of the night, in minutes. No training run starts later. 0 means no limit."
        ),
    )
    judge_requests: int = Field(
        default=0,
        ge=0,
        description=(
            "Largest number of requests to the language model that judges, for "
            "all runs of a night. 0 means no limit."
        ),
    )
    judge_tokens: int = Field(
        default=0,
        ge=0,
        description=(
            "Largest number of tokens of the language model that judges, in "
            "prompts and answers. 0 means no limit."
        ),
    )
    judge_usd: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Largest cost of the language model that judges, in US dollars, by "
            "judge.input_price and judge.output_price. 0 means no limit."
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
            "Base URL of an OpenAI-compatible server, such as https://host/v1. "
            "Without an endpoint, no language model judges."
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
            "File with a Jinja template of the prompt, instead of the template of the package."
        ),
    )
    parameters: dict[str, Any] = Field(
        default={"temperature": 0, "max_tokens": 512},
        description="Parameters that are sent with every request.",
    )
    input_price: float = Field(
        default=0.0, ge=0, description="Price of prompts, in US dollars per million tokens."
    )
    output_price: float = Field(
        default=0.0, ge=0, description="Price of answers, in US dollars per million tokens."
    )
    concurrency: int = Field(
        default=4, ge=1, le=64, description="Number of requests at the same time."
    )
    retries: int = Field(
        default=4,
        ge=0,
        description="Number of retries after a temporary failure.",
    )
    seconds: float = Field(
        default=120.0, gt=0, description="Longest time that an answer may take, in seconds."
    )
    max_characters: int = Field(
        default=200_000,
        ge=1000,
        description=(
            "Longest prompt, in characters. The model is not asked about longer sessions."
        ),
    )

    least_precision: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description=(
            "Lowest precision of a trusted judge: the share of the sessions that a language "
            "model or measures find good and people find good, too. The lower end of its 90 % "
            "interval must reach this value on labels that `agent-pipeline review` drew at "
            "random. Otherwise the verdicts of the judge are unverified. 0 trusts a language "
            "model without labels."
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
            "Values that are not private: exact values, or regular expressions between slashes."
        ),
    )
    types: list[str] = Field(
        default=list(DEFAULT_TYPES),
        description=f"Kinds of private data to look for: {', '.join(KINDS)}.",
    )
    phone_regions: list[str] = Field(
        default=["US"],
        description=(
            "Countries whose telephone numbers are recognized without + and country code."
        ),
    )
    ner_model: str = Field(
        default="en_core_web_lg",
        description=(
            "Installed spaCy pipeline that finds PERSON and LOCATION, if types contains them."
        ),
    )
    surrogates: bool = Field(
        default=True,
        description=(
            "Whether models see made-up values instead of pseudonyms, because "
            "users write real values."
        ),
    )


class NotifySettings(Section):
    """Notifications about nightly runs, failures and decisions (`[notify]`)."""

    urls: list[str] = Field(
        default=[],
        description=(
            "Addresses for notifications, in the form of Apprise. $NAME is read "
            "from the environment. Without an address, no notifications are sent."
        ),
    )
    idle_days: int = Field(
        default=7,
        ge=1,
        description=(
            "Number of days without training after which a notification is sent. "
            "The notification is repeated after the same number of days."
        ),
    )


class SplitSettings(Section):
    """The shares of the tasks that are held out permanently (`[split]`).

    Change them before the first night, and not afterwards.
    """

    test: float = Field(
        default=0.2, description="Share of the tasks in the split test, which measures models."
    )
    select: float = Field(
        default=0.1,
        description="Share of the tasks in the split select, on which the decision is made.",
    )
    leaks: Literal["refuse", "warn"] = Field(
        default="refuse",
        description=(
            "What happens if held-out sessions look like trials of training "
            "tasks: refuse stops training, warn only logs a warning."
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
            "Weight of each agent, by project/agent or by a pattern such as "
            "tau/*. Each agent that matches a pattern has the weight of the "
            "pattern."
        ),
    )
    strategy: MixingStrategy = Field(
        default="weighted",
        description=(
            "Share of each agent. weighted: by weights. balanced: equal. "
            "proportional: by the number of its rows."
        ),
    )
    total: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of training rows. 0 takes as many rows as possible while "
            "every agent has its exact share."
        ),
    )
    seed: int = Field(default=42, description="Seed of the choice and the order of rows.")
