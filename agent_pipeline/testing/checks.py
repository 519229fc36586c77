"""Checks of a user's reader and of a user's world, for the user's own tests."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

from agent_pipeline.evaluation.episodes import Episode, play
from agent_pipeline.evaluation.players import recorded_player
from agent_pipeline.evaluation.worlds import World
from agent_pipeline.sessions.session import Message, Session, ToolCall, encode_json
from agent_pipeline.sources.base import TraceSource


def check_reader(reader: type[TraceSource], path: Path | str) -> list[Session]:
    """Read a store as the pipeline does, check the rules of readers, and return all sessions.

    Args:
        reader: The class of the reader.
        path: A store that the reader can read.

    Raises:
        AssertionError: The reader breaks a rule. The message names the rule and the session.
    """
    is_file = isinstance(path, Path) or "://" not in path
    assert not is_file or reader.detect(Path(path)), (
        f"{reader.__name__}.detect({str(path)!r}) is not true, so the store needs the prefix "
        f"{reader.name}: in the setting `store`."
    )
    source = reader(path)
    keys = source.partitions()
    assert keys, f"{reader.__name__}.partitions() returned no partition."
    assert keys == sorted(set(keys)), (
        f"{reader.__name__}.partitions() must return sorted keys, and each key once: {keys}."
    )
    signature = source.signature()
    sessions: list[Session] = []
    for key in keys:
        partition = list(source.sessions(key))
        for session in partition:
            assert (session.project, session.agent) == tuple(key), (
                f"The session {session.session_id} of {session.project}/{session.agent} was "
                f"returned for the partition {key}."
            )
        for first, second in pairwise(partition):
            assert first.session_id < second.session_id, (
                f"The sessions of {key} must be ordered by id, and each id must occur once: "
                f"{second.session_id} follows {first.session_id}."
            )
        again = list(reader(path).sessions(key))
        assert list(map(encode_json, again)) == list(map(encode_json, partition)), (
            f"The sessions of {key} differ when they are read again, so each run would read all "
            "sessions again."
        )
        sessions += partition
    assert source.signature() == signature, (
        f"{reader.__name__}.signature() changes although the store does not."
    )
    return sessions


def play_task(
    world: Callable[[], World],
    row: Mapping[str, object],
    replies: Sequence[str | ToolCall | Message],
) -> Episode:
    """Play one task with replies that are written in advance, and return the episode.

    The world runs the calls and answers as it does for a model. After the last reply, the player
    answers with empty messages, which end the episode.

    Args:
        world: The class of the world.
        row: The arguments of the world's `reset`, such as `{"task_key": "cancel-B1"}`.
        replies: The replies of the model: a text, a call that `make_call` returns, or a whole
            assistant message.
    """
    messages = [_to_message(reply) for reply in replies]
    (episode,) = play(world, [{"messages": [], "tools": [], **row}], recorded_player([messages]))
    return episode


def _to_message(reply: str | ToolCall | Message) -> Message:
    if isinstance(reply, str):
        return {"role": "assistant", "content": reply}
    if "function" in reply:
        return {"role": "assistant", "content": "", "tool_calls": [cast(ToolCall, reply)]}
    return reply
