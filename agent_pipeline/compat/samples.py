"""Training data in the forms that people have it in, as the rows that every room here works on.

A record's keys say what it is: `messages` (OpenAI's form), `conversations` (ShareGPT), `prompt` and
`completion` (chats or texts), `instruction` and `output` (Alpaca), or it is an `AgentTrajectory`.
Data is a list of records, a Hugging Face data set, a folder that `Dataset.save_to_disk` wrote, or a
file of records (JSON lines, JSON, Parquet, Arrow).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from agent_pipeline.compat.examples import counted, session_of_chat, value_of
from agent_pipeline.compat.sage.trajectories.model import AgentTrajectory, session_of
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
from agent_pipeline.sessions.session import Message, Role, drop_keys, is_trained
from agent_pipeline.sources.formats.fields import chosen, number, objects, when
from agent_pipeline.sources.formats.plain import ShareGPTSource
from agent_pipeline.sources.formats.record_files import records

Row: TypeAlias = DatasetRow
Record = Mapping[str, Any]

KEYS = "messages, conversations, prompt and completion, or instruction and output"


@dataclass
class Samples:
    """Rows to learn (`row_id`, `session_id`, `content_sha256`, `task_key`, `split`, `messages`,
    `tools`), pairs of texts that no chat template renders, each (prompt, completion), and `counts`:
    `records` = `rows` + `texts` + the reasons why others are none.
    """

    rows: list[Row] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def read_samples(data: object, split: str = "train") -> Samples:
    """The data as rows of one split, in its order; a row of our own tables keeps its names.

    Of records that name their split (our tables do) training takes those of `train` alone, and
    evaluation none of those. Damaged conversations are repaired or left out by the default policy,
    and counted. Raises DataError where nothing is left, or the data is none of these; StoreError
    where a file cannot be read.
    """
    samples, seen = Samples(), Counter[str]()
    for record_number, record in enumerate(_records(data), 1):
        samples.counts["records"] += 1
        if _is_of_another_split(record, split):
            samples.counts["of_another_split"] += 1
        elif texts := _texts(record):
            samples.texts.append(texts)
            samples.counts["texts"] += 1
        elif isinstance(row := _row(record, record_number, split), str):
            samples.counts[row] += 1
        else:
            seen[row["row_id"]] += 1
            if seen[row["row_id"]] > 1:
                row["row_id"] += f"~{seen[row['row_id']]}"
            samples.rows.append(row)
            samples.counts["rows"] += 1
    if not (samples.rows or samples.texts):
        reasons = counted(samples.counts, "records") or "it is empty"
        raise DataError(
            f"The training data holds nothing to learn from ({reasons}): give records with {KEYS}."
        )
    return samples


def rows_only(data: object, split: str = "train") -> tuple[list[Row], Counter[str]]:
    """The rows and counts of data that must be conversations. Raises what `read_samples` raises,
    and DataError for texts.
    """
    samples = read_samples(data, split)
    if samples.texts:
        raise DataError(
            f"{len(samples.texts)} of {samples.counts['records']} records are texts, no "
            f"conversations: give messages."
        )
    return samples.rows, samples.counts


def _records(data: object) -> Iterable[object]:
    if isinstance(data, str | Path):
        data = _of_path(Path(data).expanduser())
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise DataError(
            f"Training data cannot be a {type(data).__name__}: give a file, a data set or a list "
            f"of records."
        )
    return map(_without_nulls, data) if hasattr(data, "features") else data


def _of_path(path: Path) -> Iterable[object]:
    if path.is_dir() and (path / "dataset_info.json").is_file():
        from datasets import load_from_disk

        result: Iterable[object] = load_from_disk(str(path))
        return result
    if not path.is_file():
        raise DataError(
            f"The training data {path} is neither a file nor a folder of a saved data set: give "
            f"one of them."
        )
    notes: list[str] = []
    lines = [record for _, record in records(path, notes)]
    if notes:
        raise DataError(
            f"{notes[0].rstrip('.')}: repair the file first; what is trained on should be all that "
            f"was meant."
        )
    return chain.from_iterable(line if isinstance(line, list) else [line] for line in lines)


def _is_of_another_split(record: object, split: str) -> bool:
    named = _text(record, "split")
    return named in SPLITS and (named == "train") != (split == "train")


def _texts(record: object) -> tuple[str, str] | None:
    """Prompt and completion of a record of texts."""
    if not isinstance(record, Mapping) or record.get("messages") is not None:
        return None
    prompt, completion = record.get("prompt"), record.get("completion")
    return (
        (prompt, completion)
        if isinstance(prompt, str) and isinstance(completion, str) and completion
        else None
    )


def _row(record: object, place: int, split: str) -> Row | str:
    """A record as a row, or why it is none."""
    if isinstance(record, AgentTrajectory):
        session, weights = session_of(record), [1]
    elif not isinstance(record, Mapping):
        return "no_record"
    elif (chat := _chat(record)) is None:
        return "unknown_keys"
    else:
        tools = record.get("tools") or record.get("functions")
        names = {
            "session_id": _text(record, "session_id"),
            "task_id": _text(record, "task_id") or None,
        }
        session, weights = (
            session_of_chat(chat[0], tools, "samples", project="samples", agent="samples", **names),
            chat[1],
        )
    repair_session(session, DEFAULT_REPAIR_POLICY)
    if session.broken:
        return f"broken:{session.broken}"
    content = session.hash_content()  # of what was said, whatever of it is trained
    turns = [message for message in session.messages if message["role"] == "assistant"]
    if not all(weights):
        if len(weights) != len(turns):
            return "weights_without_their_messages"
        for message, weight in zip(turns, weights, strict=True):
            message.update({} if weight else {"weight": 0})
    messages = cut_after_last_trained_turn(session.messages)
    if not any(is_trained(message) for message in messages if message["role"] == "assistant"):
        return "nothing_to_learn"
    name = _text(record, "row_id") or _text(record, "session_id") or f"record-{place}"
    row = {
        "row_id": name,
        "session_id": _text(record, "session_id") or session.session_id or name,
        "content_sha256": content,
        "task_key": _text(record, "task_key") or find_task_key(session, None, ""),
        "split": split,
        "messages": messages,
        "tools": session.tools,
        **chosen(
            {
                "score": number(value_of(record, "score")),
                "created_at": when(value_of(record, "created_at")),
            },
            ("score", "created_at"),
        ),
    }
    return cast(Row, row)


def _text(record: object, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""


def _chat(record: Record) -> tuple[Chat, list[int]] | None:
    """The conversation of a record, and the weight of each of the assistant's messages; `None`
    where no key says that there is one.
    """
    if record.get("messages") is not None:
        return _weighted(record["messages"])
    if record.get("conversations") is not None:
        return _turns(record)
    if isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list):
        # Only the completion is trained, whatever the assistant said before it.
        before = [
            message | {"weight": 0} if isinstance(message, dict) else message
            for message in record["prompt"]
        ]
        return _weighted([*before, *record["completion"]])
    if isinstance(record.get("instruction"), str) and isinstance(record.get("output"), str):
        request = "\n\n".join(filter(None, (record["instruction"], record.get("input"))))
        texts: tuple[tuple[Role, Any], ...] = (
            ("system", record.get("system")),
            ("user", request),
            ("assistant", record["output"]),
        )
        return Chat(
            [{"role": role, "content": text} for role, text in texts if text or role != "system"]
        ), [1]
    return None


def _turns(record: Record) -> tuple[Chat, list[int]]:
    """A ShareGPT conversation: in our own form, which has ids, nothing is lost; in another the
    reader of such files knows what is what.
    """
    turns = objects(record["conversations"])
    acts = [turn for turn in turns if turn.get("from") in ("function_call", "observation")]
    if acts and all("ids" in turn for turn in acts):
        return _weighted(from_sharegpt_turns(turns))
    weights = [
        int(turn.get("train") is not False)
        for turn in turns
        if turn.get("from") in ("gpt", "assistant", "function_call")
    ]
    return ShareGPTSource.chat(record), weights


def _weighted(messages: object) -> tuple[Chat, list[int]]:
    """A chat in any spelling, and the weights that its messages had."""
    if not isinstance(messages, list):
        return read_chat(messages), [1]
    weights = [
        int(bool(object.get("weight", 1)))
        for object in objects(messages)
        if object.get("role") == "assistant"
    ]
    return read_chat(
        [
            drop_keys(cast(Message, message), "weight") if isinstance(message, dict) else message
            for message in messages
        ]
    ), weights


def _without_nulls(value: object) -> object:
    """A value as it was before `datasets` gave every object all the keys that any has."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
