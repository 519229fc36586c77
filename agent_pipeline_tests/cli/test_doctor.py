"""The command doctor: exit codes, JSON, and a path instead of settings."""

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from agent_pipeline.cli.app import app
from agent_pipeline.judging.free_opinions import UNKNOWN_SCALES, ScoreScales
from agent_pipeline.judging.labels import Labels
from agent_pipeline.keys import PartitionKey
from agent_pipeline.readiness import doctor as doctor_room
from agent_pipeline.readiness import examination_pool
from agent_pipeline.readiness.examination import Examination
from agent_pipeline.readiness.examination_pool import ExaminationPool
from agent_pipeline.readiness.report import Readiness
from agent_pipeline.readiness.token_counts import BaseTokens
from agent_pipeline_tests.readiness.examined import chat, write_chats


@pytest.fixture(autouse=True)
def without_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are estimated, because loading a tokenizer takes seconds."""
    monkeypatch.setattr(
        doctor_room, "load_tokens", lambda name, *rest: BaseTokens(name, None, None, "a test")
    )


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)


def store(tmp_path: Path, count: int = 40, **fields: object) -> Path:
    chats = [chat(f"s-{n}", f"find thing {n}", **fields) for n in range(count)]
    return write_chats(tmp_path / "chats.jsonl", chats)


@pytest.mark.parametrize(
    ("fields", "code", "step"),
    [
        ({"judgment": "acceptable"}, 0, "materialize p/a"),
        ({}, 1, "review p/a"),
        ({"scores": {"feedback": 1}}, 1, "doctor p/a"),
    ],
)
def test_exit_codes(
    fields: dict[str, object],
    code: int,
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 if an agent can be trained, 1 if not yet, 2 if the store cannot be read.

    The next command reads the store of the settings, so that `init` comes first if there are none.
    """
    monkeypatch.chdir(tmp_path)
    path = store(tmp_path, **fields)
    done = run(str(path))
    assert done.exit_code == code and f"agent-pipeline init {path}" in done.stderr
    (tmp_path / "pipeline.toml").write_text(f'store = "{path.name}"\n', encoding="utf-8")
    done = run(str(path))
    assert done.exit_code == code and f"agent-pipeline {step}" in done.stderr


def test_missing_store(tmp_path: Path) -> None:
    missing = run(str(tmp_path / "missing"))
    assert missing.exit_code == 2 and "missing" in missing.stderr and not missing.stdout


def test_wrong_setting_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('stroe = "x"\n', encoding="utf-8")
    assert run().exit_code == 2


def test_settings_name_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = store(tmp_path, judgment="acceptable").name
    (tmp_path / "pipeline.toml").write_text(f'store = "{name}"\n', encoding="utf-8")
    assert run().exit_code == 0
    assert not (tmp_path / "lake").exists()


def test_json_has_the_facts(tmp_path: Path) -> None:
    done = run(str(store(tmp_path, judgment="acceptable")), "--json")
    report = msgspec.json.decode(done.stdout, type=Readiness)
    (agent,) = report.agents
    assert report.is_ready and agent.trainable == 40 and agent.contents.calls == 40


def test_folder_of_several_stores(tmp_path: Path) -> None:
    """Each store of a folder is read, and files that no reader knows are named."""
    store(tmp_path, judgment="acceptable")
    other = chat("t-1", "find a thing") | {"agent": "b"}
    (tmp_path / "more").mkdir()
    write_chats(tmp_path / "more" / "other.jsonl", [other])
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    report = msgspec.json.decode(run(str(tmp_path), "--json").stdout, type=Readiness)
    assert [agent.partition for agent in report.agents] == ["p/a", "p/b"]
    assert [Path(file).name for file in report.unknown] == ["notes.txt"]


@pytest.fixture
def many_agents(tmp_path: Path) -> Path:
    """Thirty agents: agent 1 has the most good sessions, and ten agents have no verdict."""
    chats = [
        chat(f"s-{agent}-{number}", f"find thing {number} of {agent}")
        | {"agent": f"a{agent:02}"}
        | ({"judgment": "acceptable"} if agent < 20 else {})
        for agent in range(30)
        for number in range(60 if agent == 1 else 40 if agent < 20 else 3)
    ]
    return write_chats(tmp_path / "chats.jsonl", chats)


class TestManyAgents:
    def test_one_screen(
        self, many_agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The nearest agents come first, and the others are counted by reason."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "pipeline.toml").write_text(f'store = "{many_agents}"\n', encoding="utf-8")
        done = run(str(many_agents))
        assert done.exit_code == 0 and "materialize p/a01" in done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) <= 40
        assert next(line[:5] for line in lines if line.startswith("p/")) == "p/a01"
        assert "p/a25" not in done.stdout
        (others,) = (line for line in lines if line.startswith("others"))
        assert "25 agents" in others and "10 not yet" in " ".join(lines)

    def test_one_agent_in_full(
        self, many_agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The agent stands after the store, or alone if the settings name the store."""
        after_store = run(str(many_agents), "p/a25", "--json")
        assert after_store.exit_code == 1
        report = msgspec.json.decode(after_store.stdout, type=Readiness)
        assert [agent.partition for agent in report.agents] == ["p/a25"]
        monkeypatch.chdir(tmp_path)
        (tmp_path / "pipeline.toml").write_text(f'store = "{many_agents.name}"\n', "utf-8")
        alone = run("p/a25", "--json")
        assert alone.exit_code == 1
        agents = msgspec.json.decode(alone.stdout, type=Readiness).agents
        assert [agent.partition for agent in agents] == ["p/a25"]
        assert run("p/a99").exit_code == 2

    def test_processes_agree_with_one_process(
        self, many_agents: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A large store is examined by several processes, and the report is the same."""
        alone = msgspec.json.decode(run(str(many_agents), "--json").stdout, type=Readiness)
        monkeypatch.setattr(doctor_room, "MIN_BYTES_FOR_PROCESSES", 1)
        together = msgspec.json.decode(run(str(many_agents), "--json").stdout, type=Readiness)
        for one, other in zip(alone.agents, together.agents, strict=True):
            assert msgspec.structs.replace(one, training=None) == msgspec.structs.replace(
                other, training=None
            )

    def test_processes_know_the_scale_of_all_scores(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scores from 1 to 5 give no verdict, although one process sees scores of 1 only."""
        chats = [
            chat(f"s-{n:02}", f"find thing {n}", score=3.0 if n % 2 else 1.0) for n in range(40)
        ]
        path = str(write_chats(tmp_path / "chats.jsonl", chats))
        alone = msgspec.json.decode(run(path, "--json").stdout, type=Readiness).agents
        monkeypatch.setattr(doctor_room, "MIN_BYTES_FOR_PROCESSES", 1)
        monkeypatch.setattr(examination_pool, "count_cores", lambda: 2)
        done = run(path, "--json")
        (agent,) = msgspec.json.decode(done.stdout, type=Readiness).agents
        assert done.exit_code == 1 and agent.judges.verdicts == {"nobody": 40}
        assert [msgspec.structs.replace(agent, training=None)] == [
            msgspec.structs.replace(other, training=None) for other in alone
        ]

    @pytest.mark.parametrize("is_early", [False, True])
    def test_killed_process(
        self, many_agents: Path, monkeypatch: pytest.MonkeyPatch, is_early: bool
    ) -> None:
        """If a process of the pool is killed, this process examines the sessions.

        A pool whose process was killed early takes no further agents.
        """

        class BrokenPool(ExaminationPool):
            def start(
                self, key: PartitionKey, labels: Labels, scales: ScoreScales = UNKNOWN_SCALES
            ) -> Callable[[], Examination]:
                if is_early:
                    raise BrokenProcessPool

                def collect() -> Examination:
                    raise BrokenProcessPool

                return collect

        monkeypatch.setattr(doctor_room, "MIN_BYTES_FOR_PROCESSES", 1)
        monkeypatch.setattr(doctor_room, "ExaminationPool", BrokenPool)
        report = msgspec.json.decode(run(str(many_agents), "--json").stdout, type=Readiness)
        assert len(report.agents) == 30 and not report.errors


def test_prices(tmp_path: Path) -> None:
    """Two sessions per day of 1,000 tokens in and 100 out."""
    chats = [
        chat(
            f"s-{n}",
            f"find {n}",
            judgment="acceptable",
            created_at=f"2026-01-{1 + n // 2:02}T{12 * (n % 2):02}:00:00+00:00",
            usage={"input_tokens": 1000, "output_tokens": 100},
        )
        for n in range(60)
    ]
    path = str(write_chats(tmp_path / "chats.jsonl", chats))
    options = ["--input-price", "10", "--output-price", "20"]
    done = run(path, "--json", *options, "--serving-price", "5")
    (agent,) = msgspec.json.decode(done.stdout, type=Readiness).agents
    assert agent.worth.usd_per_month == pytest.approx(2 * 30 * 0.012, rel=0.05)
    assert "not worth it" in run(path, *options, "--serving-price", "5").stdout
    assert "not worth it" not in run(path, *options, "--serving-price", "0.1").stdout
