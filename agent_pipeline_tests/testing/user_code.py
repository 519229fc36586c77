"""Code of a user: a reader, a measure, a world, their tests, and a training run in a notebook."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg

from agent_pipeline import (
    AgentPipelineComponent,
    AgentSFTConfig,
    AgentSFTTrainer,
    export_traces_for_sft,
    list_sessions,
)
from agent_pipeline.definitions import build_defs
from agent_pipeline.errors import PipelineError, StoreError
from agent_pipeline.evaluation.worlds import HasUser, SimulatedUser, TellsHarm, World, load_world
from agent_pipeline.judging import EvaluationContext, MeasureResult, measure
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import TraceSource
from agent_pipeline.testing import (
    WeatherWorld,
    check_reader,
    make_call,
    make_tiny_model,
    play_task,
    weather_session,
    write_store,
)


class Helpdesk(TraceSource):
    name = "helpdesk"
    looks_like = "a folder of tickets"
    reads_folders = True

    @classmethod
    def detect(cls, path: Path) -> bool:
        return path.is_dir()

    def partitions(self) -> list[PartitionKey]:
        return [PartitionKey("helpdesk", "assistant")]

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for path in sorted(self.path.glob("*.txt")):
            chat = read_chat([{"role": "user", "content": path.read_text()}])
            if not chat.messages:
                raise StoreError(f"{path} is empty.")
            yield Session(
                session_id=path.stem,
                project=key.project,
                agent=key.agent,
                source=self.name,
                messages=chat.messages,
                damage=dict(chat.damage),
            )


@measure
def short(context: EvaluationContext, words: int = 50) -> MeasureResult:
    count = len(context.final_answer.split())
    names: list[str] = [call.name for call in context.calls]
    return MeasureResult(count <= words, f"{count} words after {names}")


class User:
    def reply(self, text: str) -> str | None:
        return None


class Shop(HasUser, TellsHarm):
    user: SimulatedUser | None = User()

    def reset(self, **row: object) -> str | None:
        self.wrong_changes: list[str] = []
        return "Refund B1."

    def get_reward(self) -> float:
        return 0.0

    def refund(self, booking: str) -> Mapping[str, str]:
        """Refund a booking."""
        self.wrong_changes.append(booking)
        return {"refunded": booking}


def test_world() -> None:
    world: World = Shop()
    world.reset()
    episode = play_task(Shop, {"task_key": "b1"}, [make_call("refund", {"booking": "B1"}), "Done."])
    harm: list[str] | None = episode.wrong_changes
    assert harm == ["B1"] and not episode.done
    other: World = load_world("agent_pipeline.testing.weather:WeatherWorld")()
    assert isinstance(other, WeatherWorld)


def test_reader(folder: Path) -> None:
    sessions: list[Session] = check_reader(Helpdesk, folder)
    write_store(folder / "store.jsonl", [*sessions, weather_session(1, judgment=None)])
    result: MeasureResult = short(EvaluationContext.from_session(sessions[0]), words=3)
    assert result.passed


def train(folder: Path) -> float:
    try:
        rows = export_traces_for_sft("shop", "support", judgment="acceptable", store=str(folder))
        print(len(list_sessions("shop", "support")))
    except PipelineError as error:
        print(error.setting)
        raise
    config = AgentSFTConfig(str(make_tiny_model(folder)), rows, max_steps=2)
    return AgentSFTTrainer(config).train().final_loss


class MyAgents(AgentPipelineComponent):
    team: str = "support"


defs: dg.Definitions = dg.Definitions.merge(dg.Definitions(), build_defs(standalone=False))
