"""The facts of a readiness report, and what follows from them.

The structs are the JSON of `agent-pipeline doctor --json`. Computing the facts belongs to
`agent_report` and `machine`, and the text for people belongs to `screen`.
"""

from datetime import datetime
from typing import Literal

import msgspec

from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.evaluation.tool_effects import ToolEffect
from agent_pipeline.readiness.precondition_proposals import ProposedPrecondition

VerdictOrigin = Literal[
    "person", "benchmark", "store", "score", "metrics", "model", "policy", "nobody"
]
"""Who judged a session. `store` is a judgment in the store whose author is unknown."""

BlockerKind = Literal[
    "no_sessions", "no_agent", "no_request", "unread_metrics", "unjudged", "all_bad", "all_dropped",
    "leaks", "overlap", "split", "length",
]  # fmt: skip
"""Why an agent cannot be trained yet."""


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of sessions in tokens of the base model.

    Attributes:
        base_model: The base model.
        median: The median of the sampled sessions.
        p90: The length that 90 % of the sampled sessions do not exceed.
        longest: The length of the session with the most characters.
        sampled: Number of sampled sessions.
        context: The longest context of the base model, if it is known.
        is_estimate: Whether the tokenizer is not on this machine, so that four characters count as
            a token.
        why_estimated: Why the tokenizer could not be used.
    """

    base_model: str
    median: int
    p90: int
    longest: int
    sampled: int
    context: int | None = None
    is_estimate: bool = False
    why_estimated: str = ""


class TrainingOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """The expected training run of an agent.

    Attributes:
        rows: Number of training rows; all sessions if no session is judged yet.
        max_length: The longest row in tokens.
        step_rows: Number of rows per optimizer step.
        steps: Number of optimizer steps.
        memory_gb: The memory that the run needs, in GB.
        free_gb: The free memory of the device, in GB.
        missing_gb: The memory that the run needs and the device does not have, in GB.
        hours: The time of the run in hours.
        device: The name of the device.
        warning: A sentence about memory that is short, or an empty text.
    """

    rows: int
    max_length: int
    step_rows: int
    steps: int
    memory_gb: float
    free_gb: float
    missing_gb: float
    hours: float
    device: str
    warning: str = ""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What the sessions of an agent contain.

    Attributes:
        sessions: Number of sessions.
        forgotten: Number of sessions on the block list, which no other count includes.
        turns: Number of the agent's messages.
        calls: Number of tool calls.
        damage: Number of sessions by kind of damage.
        damaged: Number of sessions with damage.
        scripts: Number of sessions by script of the first request.
        redacted: Number of sessions by kind of private data, which is replaced.
        without_system_prompt: Number of sessions without a system prompt.
        without_request: Number of sessions without a message of a user.
        called_tools: The names of the called tools.
        inferred_tools: Number of sessions with calls for which the store has no tool schemas.
        first: The time at which the first session began.
        last: The time at which the last session began.
        tokens: The lengths of sessions, if any session has an answer of the agent.
    """

    sessions: int
    forgotten: int
    turns: int
    calls: int
    damage: dict[str, int]
    damaged: int
    scripts: dict[str, int]
    redacted: dict[str, int]
    without_system_prompt: int
    without_request: int
    called_tools: list[str]
    inferred_tools: int
    first: datetime | None
    last: datetime | None
    tokens: TokenCounts | None


class AgreementFacts(msgspec.Struct, frozen=True):
    """The agreement of a judge of the machine with people.

    Attributes:
        judge: The judge.
        sessions: Number of sessions that both judged.
        share: The share of these sessions on which both agree.
        low: The lower end of the 95 % interval of the share.
        high: The upper end of the interval.
    """

    judge: str
    sessions: int
    share: float
    low: float
    high: float


class MetricFacts(msgspec.Struct, frozen=True):
    """A metric of the store that no setting declares, so that it judges nothing.

    Attributes:
        sessions: Number of sessions with the metric.
        low: The smallest value.
        high: The largest value.
    """

    sessions: int
    low: float
    high: float


class Judges(msgspec.Struct, frozen=True, kw_only=True):
    """Who judged the sessions.

    Attributes:
        verdicts: Number of sessions by who judged.
        acceptable: Number of acceptable sessions.
        unacceptable: Number of unacceptable sessions.
        labelled: Number of sessions that a person judged.
        agreement: The agreement of other judges with people, if enough sessions were labelled.
        undeclared_metrics: The metrics whose direction is unknown.
        undecided_scores: Number of scores between the two limits, which give no verdict.
    """

    verdicts: dict[VerdictOrigin, int]
    acceptable: int
    unacceptable: int
    labelled: int
    agreement: list[AgreementFacts]
    undeclared_metrics: dict[str, MetricFacts]
    undecided_scores: int


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of the sessions, and the split that follows.

    Attributes:
        tasks: Number of tasks of all sessions.
        named: Number of tasks that the source or a setting names.
        median_trials: Median number of sessions per task.
        most_trials: Maximum number of sessions per task.
        trained: Number of tasks with a trainable session, by split.
        rows: Number of trainable sessions, by split.
        leaks: Number of held-out sessions that look like trials of trained tasks.
        task_pattern: A proposed `task_pattern`.
        grouped: Number of sessions that the pattern groups with other sessions.
        grouped_tasks: Number of tasks according to the pattern.
    """

    tasks: int
    named: int
    median_trials: float
    most_trials: int
    trained: dict[str, int]
    rows: dict[str, int]
    leaks: int
    task_pattern: str = ""
    grouped: int = 0
    grouped_tasks: int = 0


class DecisionOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """When a decision on a model is possible.

    Attributes:
        held_out: Number of tasks in the split `select` with a trainable session.
        needed: Number of tasks that a decision needs to see the gain that is sought.
        turns_per_task: Number of turns per held-out task that a decision compares.
        gain: The gain that is sought, as a share.
        tasks_per_day: New tasks with a trainable session per day, in the last days of the store
            (`RECENT_DAYS`).
        is_possible: Whether enough tasks are held out.
        weeks: Weeks until enough tasks are held out at this rate.
        share: The smallest `split.select` that holds out enough of the current tasks.
    """

    held_out: int
    needed: int
    turns_per_task: float
    gain: float
    tasks_per_day: float
    is_possible: bool
    weeks: float | None = None
    share: float | None = None


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an agent is worth a model of its own.

    Attributes:
        sessions_per_day: Sessions per day, in the last days of the store (`RECENT_DAYS`).
        tools: Number of distinct tools that the agent called.
        requests: Number of distinct first requests.
        call_share: Share of the agent's turns that are tool calls, which can be checked.
        judged_share: Share of the sessions with a verdict.
        input_tokens: Input tokens per session according to the store.
        output_tokens: Output tokens per session according to the store.
        usd_per_month: Cost of 30 days at today's rate, from the store or from the given prices.
        usd_own_model: Cost of serving a model for 30 days, as given.
    """

    sessions_per_day: float
    tools: int
    requests: int
    call_share: float
    judged_share: float
    input_tokens: float | None = None
    output_tokens: float | None = None
    usd_per_month: float | None = None
    usd_own_model: float | None = None

    @property
    def is_cheaper(self) -> bool | None:
        """Whether an own model costs less than today, or None if a cost is unknown."""
        if self.usd_per_month is None or self.usd_own_model is None:
            return None
        return self.usd_own_model < self.usd_per_month


class Blocker(msgspec.Struct, frozen=True):
    """A reason why an agent cannot be trained yet.

    Attributes:
        kind: The kind of reason.
        sentence: What is wrong, and what to do.
    """

    kind: BlockerKind
    sentence: str


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on one agent.

    Attributes:
        partition: The partition.
        contents: What the sessions contain.
        judges: Who judged the sessions.
        tasks: The tasks and their split.
        is_ready: Whether the agent can be trained.
        max_length: The longest row of a training run, in tokens.
        trainable: Number of sessions that can be trained on, held-out sessions included.
        dropped: Number of other sessions, by reason.
        blockers: Why the agent cannot be trained yet. Empty if it can be trained.
        fuller_split: The sizes of `test` and `select` with which no split is empty; None if no
            split is empty, if no sizes help, or if the splits of the tasks are recorded already.
        most_dropped: The `sft_adapter.most_dropped` with which training accepts sessions that are
            longer than the base model's context; None if nothing must be shortened.
        outlook: When a decision is possible.
        worth: Whether the agent is worth a model of its own.
        training: The expected training run; None if the base model's size is unknown.
        settings: Lines for `pipeline.toml`.
        preconditions: Rules that the calls of all good sessions of the sample satisfy.
        tool_effects: Which of the called tools only look things up, and why.
        notes: Sentences about records that were left out, and about settings to change.
    """

    partition: str
    contents: Contents
    judges: Judges
    tasks: Tasks
    is_ready: bool
    max_length: int
    trainable: int
    dropped: dict[str, int]
    blockers: list[Blocker]
    outlook: DecisionOutlook
    worth: Worth
    fuller_split: SplitSizes | None = None
    most_dropped: float | None = None
    training: TrainingOutlook | None = None
    settings: list[str] = []
    preconditions: list[ProposedPrecondition] = []
    tool_effects: list[ToolEffect] = []
    notes: list[str] = []


class GpuFacts(msgspec.Struct, frozen=True):
    """A GPU of the machine.

    Attributes:
        name: The name of the GPU.
        memory_gb: Its memory in GB.
    """

    name: str
    memory_gb: float


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which models are trained.

    Attributes:
        cores: Number of CPU cores that this process may use.
        memory_gb: Main memory in GB.
        disk_gb: Free space in GB on the disk of the lake; None for a lake in a bucket.
        torch: The version of PyTorch.
        gpus: The GPUs that PyTorch can use.
        llama_server: The path of llama-server, or an empty text.
        errors: Sentences about what must be repaired.
    """

    cores: int
    memory_gb: float
    disk_gb: float | None
    torch: str
    gpus: list[GpuFacts]
    llama_server: str
    errors: list[str] = []


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The report on all agents of the stores, and on the machine.

    Attributes:
        is_ready: Whether at least one agent can be trained.
        stores: The stores.
        agents: One report per agent.
        machine: The machine.
        errors: Sentences about parts of the stores that could not be read.
        unknown: Files that no reader knows.
        seconds: Duration of the examination.
    """

    is_ready: bool
    stores: list[str]
    agents: list[AgentReport]
    machine: Machine
    errors: list[str] = []
    unknown: list[str] = []
    seconds: float = 0.0
