"""tau-bench results: a list of `{task_id, trial, reward, info, traj}` with OpenAI messages.

The tools are not in the file (`agents."project/agent".tools` may name a file of them). A run that broke says so in `info.error`.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import chat_to_messages
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.formats.fields import scalar, section, verdict
from agent_pipeline.sources.formats.files import FileSource, Ident, Record
from agent_pipeline.sources.formats.records import Place


class _Run(msgspec.Struct):
    traj: msgspec.Raw
    task_id: Any
    trial: Any = None


class TauBenchSource(FileSource):
    """A file of results, or a folder of them (an agent each)."""

    name: ClassVar[str] = "tau_bench"
    looks_like: ClassVar[str] = "a JSON list of results with task_id, reward and traj"
    outline: ClassVar[type[msgspec.Struct]] = _Run

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return isinstance(record.get("traj"), list) and "task_id" in record

    def identify(self, record: Record, place: Place) -> Ident:
        trial = scalar(record.get("trial"))
        session = f"task{scalar(record.get('task_id'))}" + (f"-trial{trial}" if trial is not None else "")
        return Ident(None, session, None, place.path.stem if place.path != self.path else None)

    def build(self, key: PartitionKey, session_id: str, found: list[tuple[Place, Record]]) -> Iterable[Session]:
        _, record = found[0]
        info = section(record, "info")
        reward, judgment = verdict(record.get("reward"))
        yield self.made(
            key,
            session_id,
            chat_to_messages(record.get("traj")),
            context={"info": info},
            scores={"reward": reward},
            task_id=record.get("task_id"),
            trial=record.get("trial"),
            judgment=judgment,
            error=info.get("error"),
        )
