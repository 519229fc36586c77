"""Training data in the forms that users can pass, converted into SFT rows.

The keys of a record show its form:

| keys | form |
|---|---|
| `messages` | OpenAI |
| `conversations` | ShareGPT |
| `prompt`, `completion` | two chats or two texts |
| `instruction`, `output` | Alpaca |

A record can also be an `AgentTrajectory`. Data is a list of records, a Hugging Face dataset, a
folder that `Dataset.save_to_disk` wrote, or a file of records (JSON Lines, JSON, Parquet, Arrow).
Stores of sessions belong to `sources`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from agent_pipeline.compat.examples import format_counts, get_value, make_session
from agent_pipeline.compat.sage.trajectories.trajectory import AgentTrajectory, make_run_session
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft import cut_after_last_trained_turn
from agent_pipeline.datasets.sharegpt import from_sharegpt_turns
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.reading import find_task_key
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.damage import DEFAULT_REPAIR_POLICY
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Message, Session, drop_keys, is_trained
from agent_pipeline.sources.formats.fields import chosen, number, objects, when
from agent_pipeline.sources.formats.plain import ShareGPTSource
from agent_pipeline.sources.formats.record_files import records

Row: TypeAlias = DatasetRow
Record = Mapping[str, Any]

KEYS = "messages, conversations, prompt and completion, or instruction and output"


@dataclass
class Samples:
    """Training data that was read from a user's records.

    Attributes:
        rows: SFT rows: `row_id`, `session_id`, `content_sha256`, `task_key`, `split`, `messages`
            and `tools`.
        texts: Pairs of a prompt and a completion that no chat template renders.
        counts: `records` = `rows` + `texts` + the reasons why records were left out.
    """

    rows: list[Row] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _WeightedChat:
    """A chat, and a weight for each assistant message: 1 if the message is trained, otherwise 0."""

    chat: Chat
    weights: list[int]


def read_samples(data: object, split: str = "train") -> Samples:
    """Return the training data of one split, in order.

    A record without a split belongs to every split. If records have a split, `train` gets the
    records of this split, and any other split gets the records that are not in `train`. Damaged
    conversations are repaired or left out by the default policy.

    Raises:
        DataError: The data has another form, or no record can be trained on.
        StoreError: A file cannot be read.
    """
    samples, occurrences = Samples(), Counter[str]()
    for number_of_record, record in enumerate(_list_records(data), 1):
        samples.counts["records"] += 1
        if _is_of_another_split(record, split):
            samples.counts["of_another_split"] += 1
            continue
        texts = _read_texts(record)
        if texts is not None:
            samples.texts.append(texts)
            samples.counts["texts"] += 1
            continue
        row = _make_row(record, f"record-{number_of_record}", split)
        if isinstance(row, str):
            samples.counts[row] += 1
            continue
        occurrences[row["row_id"]] += 1
        if occurrences[row["row_id"]] > 1:
            row["row_id"] += f"~{occurrences[row['row_id']]}"
        samples.rows.append(row)
        samples.counts["rows"] += 1
    if not (samples.rows or samples.texts):
        reasons = format_counts(samples.counts, "records") or "it is empty"
        raise DataError(
            f"The training data does not contain a record to learn from ({reasons}): give records "
            f"with {KEYS}."
        )
    return samples


def read_conversations(data: object, split: str = "train") -> Samples:
    """Return training data that consists only of conversations.

    Raises:
        DataError: A record is a pair of texts, or what `read_samples` raises.
    """
    samples = read_samples(data, split)
    if samples.texts:
        raise DataError(
            f"{len(samples.texts)} of {samples.counts['records']} records are texts, but only "
            "conversations can be used here: give records with messages."
        )
    return samples


def _list_records(data: object) -> Iterable[object]:
    if isinstance(data, str | Path):
        data = _read_path(Path(data).expanduser())
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise DataError(
            f"The training data has the type {type(data).__name__}: give a file, a dataset or a "
            "list of records."
        )
    return map(_drop_nulls, data) if hasattr(data, "features") else data


def _read_path(path: Path) -> Iterable[object]:
    if (path / "dataset_info.json").is_file():
        from datasets import load_from_disk

        saved: Iterable[object] = load_from_disk(str(path))
        return saved
    if not path.is_file():
        raise DataError(
            f"The path of the training data {path} is neither a file nor a saved dataset: give a "
            "file, or the folder of a saved dataset.",
            path=path,
        )
    notes: list[str] = []
    values = [value for _, value in records(path, notes)]
    if notes:
        raise DataError(f"{notes[0].rstrip('.')}: repair the file first.", path=path)
    return chain.from_iterable(value if isinstance(value, list) else [value] for value in values)


def _is_of_another_split(record: object, split: str) -> bool:
    record_split = _get_text(record, "split")
    return record_split in SPLITS and (record_split == "train") != (split == "train")


def _read_texts(record: object) -> tuple[str, str] | None:
    """Return the prompt and the completion of a record that contains texts, or None."""
    if not isinstance(record, Mapping) or record.get("messages") is not None:
        return None
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str) and completion:
        return prompt, completion
    return None


def _make_row(record: object, fallback_id: str, split: str) -> Row | str:
    """Convert a record into a row, or return the reason why this is not possible."""
    if isinstance(record, AgentTrajectory):
        session, weights = make_run_session(record), [1]
    elif not isinstance(record, Mapping):
        return "no_record"
    else:
        weighted_chat = _read_chat(record)
        if weighted_chat is None:
            return "unknown_keys"
        session, weights = _make_sample_session(record, weighted_chat.chat), weighted_chat.weights
    repair_session(session, DEFAULT_REPAIR_POLICY)
    if session.broken:
        return f"broken:{session.broken}"
    content_sha256 = session.hash_content()  # does not depend on the weights
    turns = [message for message in session.messages if message["role"] == "assistant"]
    if not all(weights):
        if len(weights) != len(turns):
            return "weights_without_their_messages"
        for message, weight in zip(turns, weights, strict=True):
            if not weight:
                message["weight"] = 0
    messages = cut_after_last_trained_turn(session.messages)
    if not any(is_trained(message) for message in messages if message["role"] == "assistant"):
        return "nothing_to_learn"
    session_id = _get_text(record, "session_id")
    row_id = _get_text(record, "row_id") or session_id or fallback_id
    optional = {
        "score": number(get_value(record, "score")),
        "created_at": when(get_value(record, "created_at")),
    }
    row = {
        "row_id": row_id,
        "session_id": session_id or session.session_id or row_id,
        "content_sha256": content_sha256,
        "task_key": _get_text(record, "task_key") or find_task_key(session, None, ""),
        "split": split,
        "messages": messages,
        "tools": session.tools,
        **chosen(optional, optional),
    }
    return cast(Row, row)


def _make_sample_session(record: Record, chat: Chat) -> Session:
    return make_session(
        chat,
        record.get("tools") or record.get("functions"),
        "samples",
        project="samples",
        agent="samples",
        session_id=_get_text(record, "session_id"),
        task_id=_get_text(record, "task_id") or None,
    )


def _get_text(record: object, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""


def _read_chat(record: Record) -> _WeightedChat | None:
    """Return the conversation in a record, or None if none of its keys contains a conversation."""
    if record.get("messages") is not None:
        return _read_messages(record["messages"])
    if record.get("conversations") is not None:
        return _read_turns(record)
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        # Only the completion is trained on.
        context = [
            message | {"weight": 0} if isinstance(message, dict) else message for message in prompt
        ]
        return _read_messages([*context, *completion])
    instruction, output = record.get("instruction"), record.get("output")
    if isinstance(instruction, str) and isinstance(output, str):
        request = "\n\n".join(filter(None, (instruction, record.get("input"))))
        messages: list[Message] = []
        if record.get("system"):
            messages.append({"role": "system", "content": record["system"]})
        messages.append({"role": "user", "content": request})
        messages.append({"role": "assistant", "content": output})
        return _WeightedChat(Chat(messages), [1])
    return None


def _read_turns(record: Record) -> _WeightedChat:
    """Return the conversation in the turns of a ShareGPT record.

    Turns of `sharegpt_dataset` have the ids of their calls, so they are read without a loss. Other
    turns are read as the source `sharegpt` reads them.
    """
    turns = objects(record["conversations"])
    tool_turns = [turn for turn in turns if turn.get("from") in ("function_call", "observation")]
    if tool_turns and all("ids" in turn for turn in tool_turns):
        return _read_messages(from_sharegpt_turns(turns))
    weights = [
        int(turn.get("train") is not False)
        for turn in turns
        if turn.get("from") in ("gpt", "assistant", "function_call")
    ]
    return _WeightedChat(ShareGPTSource.chat(record), weights)


def _read_messages(messages: object) -> _WeightedChat:
    """Convert messages in the format of any supported SDK into a chat."""
    if not isinstance(messages, list):
        return _WeightedChat(read_chat(messages), [1])
    weights = [
        int(bool(message.get("weight", 1)))
        for message in objects(messages)
        if message.get("role") == "assistant"
    ]
    unweighted = [
        drop_keys(cast(Message, message), "weight") if isinstance(message, dict) else message
        for message in messages
    ]
    return _WeightedChat(read_chat(unweighted), weights)


def _drop_nulls(value: object) -> object:
    """Return a value without the null keys that the library `datasets` added."""
    if isinstance(value, dict):
        return {name: _drop_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_drop_nulls(inner) for inner in value]
    return value
