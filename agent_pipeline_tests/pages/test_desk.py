"""The review: its order, what it hides, and 50 sessions by keyboard in a real browser."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agent_pipeline.cli.webserver import OwnPagesOnly
from agent_pipeline.config.settings import load_settings
from agent_pipeline.judging import read_labels
from agent_pipeline.judging.annotations import read_annotations
from agent_pipeline.pages.app import make_app
from agent_pipeline.pages.desk import ReviewOptions
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.browser import Tab
from agent_pipeline_tests.judging.sessions import calls, result
from agent_pipeline_tests.pages.sites import KEY, judged_row, put_judged, serving

SECRET = "the machine says so"


def rows(count: int) -> list[dict[str, Any]]:
    """Sessions about which a measure and a language model have an opinion."""
    opinion = {"verdict": "unacceptable", "reason": SECRET, "name": "", "pending": False}
    messages = [
        {"role": "user", "content": "Where is my order?"},
        calls(("find", {"id": 1})),
        result("Error: no order"),
        {"role": "assistant", "content": "It is gone."},
    ]
    made = [
        judged_row(f"s{index:03}", messages, opinions={"llm": opinion}) for index in range(count)
    ]
    for row in made:
        row["turns"][0]["failed_measures"] = [SECRET]
    return made


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TestClient:
    put_judged(Lake(str(tmp_path / "lake")), rows(3))
    (tmp_path / "pipeline.toml").touch()
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(tmp_path / "pipeline.toml"))
    app = OwnPagesOnly(make_app(load_settings(), ReviewOptions(annotator="ana")))
    return TestClient(app, base_url="http://127.0.0.1:3010")


def judge(client: TestClient, session_id: str, mark: str, **more: str) -> Any:
    body = {"session_id": session_id, "mark": mark, "note": "", "annotator": "ana"} | more
    return client.post(f"/{KEY}/review", json=body)


def shown(page: str) -> str:
    return page.partition('data-review="')[2].partition('"')[0]


def test_hidden_opinion(client: TestClient) -> None:
    """The machine's opinion is not on the page before the judgment, and is there afterwards."""
    before = client.get(f"/{KEY}/review").text
    assert SECRET not in before and "tool error" in before
    session_id = shown(before)
    following = judge(client, session_id, "acceptable").json()["next"]
    after = client.get(following).text
    assert SECRET in after and shown(after) not in ("", session_id)
    assert after.count(SECRET) == 1, "only the session that is judged shows an opinion"
    assert SECRET in client.get(f"/{KEY}/review?id={session_id}").text


def test_annotators(client: TestClient) -> None:
    """Each annotator begins with an empty review, and the last page has their agreement."""
    for name, verdicts in (("ana", "aua"), ("ben", "auu")):
        for letter in verdicts:
            session_id = shown(client.get(f"/{KEY}/review?annotator={name}").text)
            judge(
                client, session_id, {"a": "acceptable", "u": "unacceptable"}[letter], annotator=name
            )
    page = client.get(f"/{KEY}/review").text
    assert "Every session is decided" in page
    assert '<td class="number">3</td><td class="number">2</td>' in page


def test_notes(client: TestClient, tmp_path: Path) -> None:
    """A note stays with the judgment, whichever comes first."""
    session_id = shown(client.get(f"/{KEY}/review").text)
    judge(client, session_id, "", note="first")
    assert 'value="first"' in client.get(f"/{KEY}/review").text
    judge(client, session_id, "unacceptable", note="first")
    judge(client, session_id, "", note="second")
    label = read_labels(tmp_path / "labels", KEY).by_id[session_id]
    assert (label.judgment, label.reason) == ("unacceptable", "second")


def test_refused(client: TestClient, tmp_path: Path) -> None:
    """Unknown sessions and judgments, forms, and other pages write nothing."""
    assert judge(client, "nobody", "acceptable").status_code == 404
    assert judge(client, "s001", "excellent").status_code == 400
    form = client.post(f"/{KEY}/review", data={"session_id": "s001", "mark": "acceptable"})
    foreign = client.post(f"/{KEY}/review", json={}, headers={"origin": "http://evil.example"})
    assert form.status_code == foreign.status_code == 403
    assert (
        client.post(
            f"/{KEY}/review", content="[1]", headers={"content-type": "application/json"}
        ).status_code
        == 400
    )
    assert not (tmp_path / "labels").exists()


def test_guidelines(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "guidelines.md").write_text("Refuse <b>refunds</b>.", "utf-8")
    assert "Refuse &lt;b&gt;refunds&lt;/b&gt;." in client.get(f"/{KEY}/review").text


class Keyboard:
    """Real key presses in a tab, which are counted."""

    def __init__(self, browser: Tab) -> None:
        self._browser = browser
        self.presses = 0

    def press(self, key: str) -> None:
        self.presses += 1
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self._browser.send("Input.dispatchKeyEvent", type=kind, key=key, **text)


@pytest.mark.slow
def test_keyboard(tmp_path: Path, tab: Tab) -> None:
    """50 sessions take 50 key presses in a real browser; a reload and a killed server lose none."""
    put_judged(Lake(str(tmp_path / "lake")), rows(60))
    (tmp_path / "pipeline.toml").write_text('labels = "labels"\n')
    command = ("review", str(KEY), "--annotator", "ana", "--no-open")
    wanted: dict[str, str] = {}

    def review(browser: Tab, keyboard: Keyboard, address: str, count: int) -> None:
        browser.open(f"{address}/{KEY}/review")
        for _ in range(count):
            session_id = browser.wait_for(
                "document.readyState === 'complete' && "
                "document.querySelector('[data-review]')?.dataset.review"
            )
            assert session_id not in wanted
            letter, wanted[session_id] = [
                ("a", "acceptable"), ("u", "unacceptable"), ("?", "unsure"), ("s", "skip"),
            ][len(wanted) % 4]  # fmt: skip
            keyboard.press(letter)
            browser.wait_for(
                f"(document.querySelector('[data-review]')?.dataset.review ?? {json.dumps(session_id)})"
                f" !== {json.dumps(session_id)}"
            )

    keyboard = Keyboard(tab)
    with serving(tmp_path, *command) as (address, process):
        began = time.monotonic()
        review(tab, keyboard, address, 30)
        tab.send("Page.reload")
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Without a server, the key does nothing, and the page says so.
        tab.wait_for("true")
    with serving(tmp_path, *command) as (address, process):
        review(tab, keyboard, address, 20)
        seconds = time.monotonic() - began
        assert "Every session is decided" in tab.wait_for(
            "document.readyState === 'complete' && document.body.innerText"
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert keyboard.presses == 50
    print(f"50 sessions: {keyboard.presses} key presses, {seconds:.1f} s with a restart")
    annotations = read_annotations(tmp_path / "labels", KEY)["ana"]
    assert {name: entry.mark for name, entry in annotations.items()} == wanted
    labels = read_labels(tmp_path / "labels", KEY)
    decided = {name: mark for name, mark in wanted.items() if mark.endswith("acceptable")}
    assert {name: label.judgment for name, label in labels.by_id.items()} == decided
    assert not labels.notes
    for line in (tmp_path / "labels" / "review.jsonl").read_text("utf-8").splitlines():
        assert json.loads(line)["annotator"] == "ana"


READY = "document.readyState === 'complete' && !!document.querySelector('[data-review]')"
PROBLEM = "getComputedStyle(document.getElementById('problem')).visibility === 'visible'"


@pytest.mark.slow
@pytest.mark.parametrize("dead", [True, False])
def test_dead_server(tmp_path: Path, tab: Tab, dead: bool) -> None:
    """If the server is dead or hangs, no judgment is lost silently: the page stays and says so."""
    put_judged(Lake(str(tmp_path / "lake")), rows(2))
    with serving(tmp_path, "review", str(KEY), "--no-open") as (address, process):
        tab.open(f"{address}/{KEY}/review")
        tab.wait_for(READY)
        assert tab.evaluate("document.getElementById('problem').hidden")
        if dead:
            process.kill()
            process.wait()
        else:
            process.send_signal(signal.SIGSTOP)
            tab.evaluate(
                "{ const real = AbortSignal.timeout; AbortSignal.timeout = () => real.call(AbortSignal, 200); 0 }"
            )
        Keyboard(tab).press("a")
        tab.wait_for("!document.getElementById('problem').hidden")
        assert "Not saved" in tab.text()


@pytest.mark.slow
def test_no_script(tmp_path: Path, tab: Tab) -> None:
    """A page without its script says that keys do nothing, instead of losing judgments silently."""
    put_judged(Lake(str(tmp_path / "lake")), rows(2))
    with serving(tmp_path, "review", str(KEY), "--no-open") as (address, _):
        tab.send("Network.enable")
        tab.send("Network.setBlockedURLs", urls=["*pages.js"])
        tab.open(f"{address}/{KEY}/review")
        tab.wait_for(f"{READY} && {PROBLEM}")
        assert "Keys and buttons do nothing" in tab.text()
