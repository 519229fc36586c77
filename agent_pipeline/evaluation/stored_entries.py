"""The types of the JSON entries in the files of an evaluation and of episodes.

`evaluate` and `reports.episode_report` write the files. Pages, logs and the promotion decision read
them. Files of older versions may lack some keys.
"""

from typing import Literal, NotRequired, TypeAlias, TypedDict

from agent_pipeline.evaluation.confidence import TurnConfidence
from agent_pipeline.sessions.session import Message, Tool

EvaluatedModel: TypeAlias = Literal["base", "adapter"]
"""Names of the two models that an evaluation compares."""


class ScoredAnswer(TypedDict):
    """The score of a model's answer at a turn (see `AnswerScore`).

    Attributes:
        expected: The class of the recorded turn.
        actual: The class of the reply; None if the reply is empty.
        called: Whether the reply calls a tool.
        right_class: Whether the class of the reply is the expected class.
        tool_name: Whether the tools are right; None if no call was expected.
        arguments: Whether the arguments are right; None if no call was expected.
        exact: Whether the calls have exactly the same effect; None if no call was expected.
        lenient: Whether a reader would regard the calls as the same; None if no call was expected.
        answer: Whether the answer is right; None if a call was expected.
        invalid_call: Whether a call cannot be parsed.
        truncated: Whether the token limit ended a wrong answer.
        right: Whether the reply is the exact call or the right answer. Older versions wrote None
            for a call that the token limit ended.
        call_probability: P(call) at the turn; None if it cannot be measured.
    """

    expected: str | None
    actual: str | None
    called: bool
    right_class: bool
    tool_name: bool | None
    arguments: bool | None
    exact: bool | None
    lenient: bool | None
    answer: bool | None
    invalid_call: bool
    truncated: bool
    right: bool | None
    call_probability: float | None


class SampleEntry(TypedDict):
    """An entry of the file `samples.json`: one turn with both models' answers.

    Attributes:
        row_id: The id of the held-out row.
        session_id: The id of its session.
        task_key: Its task.
        turn_index: The position of the turn in the row's messages.
        prompt_tail: The end of the prompt.
        expected: What the agent did.
        expected_class: The class of the recorded turn.
        expected_tool: The first tool that the agent called; None if it called none.
        base_answer: The base model's answer.
        adapter_answer: The adapter's answer.
        base: What is right about the base model's answer.
        adapter: What is right about the adapter's answer.
    """

    row_id: str
    session_id: str
    task_key: str
    turn_index: int
    prompt_tail: str
    expected: str
    expected_class: str | None
    expected_tool: str | None
    base_answer: str
    adapter_answer: str
    base: ScoredAnswer
    adapter: ScoredAnswer


class RowLossEntry(TypedDict):
    """An entry of the file `row_losses.json`: one row with both models' losses.

    Attributes:
        row_id: The id of the held-out row.
        session_id: The id of its session, by which a forgotten session's losses are found.
        task_key: Its task.
        tokens: The tokens that have a loss.
        base: The base model's loss in nats per token; None if the row has no such token.
        adapter: The adapter's loss.
    """

    row_id: str
    session_id: str
    task_key: str
    tokens: int
    base: float | None
    adapter: float | None


class UnsettledEntry(TypedDict):
    """The fields of `worlds.Unsettled`."""

    kind: str
    text: str
    harm_suspected: bool


class Transcript(TypedDict):
    """An entry of the file `episodes.jsonl`: the fields of `Episode`, and the player.

    Attributes:
        player: The player: `model`, `base` or `recorded`.
        variant: The variant in which the task was played; empty for the original task. Older
            versions did not write it.
        acted_early: As in `Episode`; older versions did not write it.
        said_wrong: As in `Episode`; older versions did not write it.
        confidence: As in `Episode`; older versions did not write it.
        unsettled: As in `Episode`; older versions did not write it.
        sources: As in `Episode`; older versions did not write it.
    """

    player: str
    task_key: str
    seed: int | None
    trial: int
    done: bool
    reward: float
    must_act: bool | None
    kind: str | None
    wrong_changes: list[str] | None
    complaint: str
    variant: NotRequired[str]
    acted_early: NotRequired[list[str] | None]
    said_wrong: NotRequired[str | None]
    end: str
    turns: int
    calls: int
    prompt_tokens: int
    tokens: int
    unended: int
    messages: list[Message]
    tools: list[Tool]
    confidence: NotRequired[list[TurnConfidence | None]]
    unsettled: NotRequired[UnsettledEntry | None]
    sources: NotRequired[list[str]]
