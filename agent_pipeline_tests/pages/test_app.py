"""The served pages: what they show, whom they refuse, and that no session runs a script."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from agent_pipeline.cli.webserver import OwnPagesOnly
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.pages.app import make_app
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.decision_page import ASSET as CHAMPION
from agent_pipeline.promotion.ledger import EXPORT, open_ledger
from agent_pipeline.promotion.production import (
    Estimate,
    ModelWeek,
    ProductionComparison,
    ProductionReport,
    SameTasks,
)
from agent_pipeline.reports.episode_report import PlayerFigures, Share
from agent_pipeline.reports.rendering import SERVED_POLICY, STORED_POLICY
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests import lakes
from agent_pipeline_tests.browser import Elements, Tab
from agent_pipeline_tests.evaluation import test_page as evaluation_page
from agent_pipeline_tests.judging.sessions import calls, result
from agent_pipeline_tests.pages.sites import KEY, judged_row, put_judged, serving

HELLO = [
    {"role": "system", "content": "Be kind about refunds."},
    {"role": "user", "content": "Where is K482?"},
    calls(("find_orders", {"query": "K482"}), content="One moment."),
    result('{"K482": ["open", 3]}'),
    {"role": "assistant", "content": "K482 is open."},
]
BROKEN = [*HELLO[:3], result("Error: no such order"), {"role": "assistant", "content": "Sorry."}]
ROWS = [
    judged_row("s1", HELLO, verdict="acceptable", verdict_by="judgment"),
    judged_row("s2", BROKEN, verdict="unacceptable", verdict_by="label", damage={"unread": 2}),
    judged_row("s/3 & <b>", [{"role": "user", "content": "Größe?"}]),
]
ATTACK = "document.documentElement.dataset.taken='yes'"
HOSTILE = (
    f"</script><script>{ATTACK}</script>",
    f"<img src=x onerror={ATTACK}>",
    f'" autofocus onfocus={ATTACK} x="',
    f"' onmouseover={ATTACK} x='",
    f'<svg onload={ATTACK}><a href="javascript:{ATTACK}">click</a>',
    f"javascript:{ATTACK}",
    "</pre></article><style>*{display:none}</style><!--",
    "{{ 7 * 7 }}{% raw %}<base href=https://evil.example>",
    "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \x00 zero\u200bwidth \U000e0041 a\u0301\u0301" * 50,
    "x" * 300_000,
    '<iframe srcdoc="<script>parent.postMessage(1)</script>"></iframe>',
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    put_judged(lake, ROWS)
    return lake


@pytest.fixture
def client(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TestClient:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    app = OwnPagesOnly(make_app(load_settings()))
    return TestClient(app, base_url="http://127.0.0.1:3010", raise_server_exceptions=False)


def test_list(client: TestClient) -> None:
    """The list shows every session, and filters choose by verdict, damage, words and id."""
    chosen = {
        "": {"s1", "s2", "s/3 & <b>"},
        "?verdict=acceptable": {"s1"},
        "?verdict=none": {"s/3 & <b>"},
        "?damage=any": {"s2"},
        "?text=GRÖSSE": set(),
        "?text=größe": {"s/3 & <b>"},
        "?text=no such order": {"s2"},
        "?text=kind about": set(),
        "?text=S1": {"s1"},
    }
    for query, ids in chosen.items():
        page = client.get(f"/{KEY}/sessions{query}").text
        codes = [attributes for tag, attributes in Elements(page).found if tag == "code"]
        assert {code["title"] for code in codes if "title" in code} == ids, query


def test_chat(client: TestClient) -> None:
    """A session is a chat: calls are folded with their results as indented JSON."""
    page = client.get(f"/{KEY}/session?id=s1").text
    assert "&#34;K482&#34;: [\n    &#34;open&#34;,\n    3\n  ]" in page
    calls_shown = [a for tag, a in Elements(page).found if a.get("class") == "call"]
    assert [(call["id"], "open" in call) for call in calls_shown] == [("message-4", False)]
    ids = [a["id"] for tag, a in Elements(page).found if tag == "article"]
    assert ids == ["message-1", "message-2", "message-3", "message-5"]


def test_marks(client: TestClient) -> None:
    """Damage, the verdict and a failed call are marked, and the failed call is open."""
    page = client.get(f"/{KEY}/session?id=s2").text
    marks = [a["class"] for tag, a in Elements(page).found if "badge" in (a.get("class") or "")]
    assert {"badge unacceptable", "badge damage", "badge failed", "badge mark"} <= set(marks)
    failed = [a for tag, a in Elements(page).found if a.get("class") == "call failed-call"]
    assert len(failed) == 1 and "open" in failed[0]


def test_any_id(client: TestClient) -> None:
    assert client.get(f"/{KEY}/session?id={quote('s/3 & <b>', safe='')}").status_code == 200
    missing = client.get(f"/{KEY}/session?id=nobody")
    assert missing.status_code == 404 and "nobody" in missing.text
    for path in (
        "/nobody/here/sessions",
        "/..%2f/x/sessions",
        "/static/page.py",
        f"/{KEY}/evaluation",
    ):
        assert client.get(path).status_code == 404, path


def test_long_session(lake: Lake, client: TestClient) -> None:
    """A long session opens at its end, and a link to a message opens the part with the message."""
    messages = [{"role": "user", "content": f"word {index}"} for index in range(1000)]
    put_judged(lake, [judged_row("long", messages)])
    page = client.get(f"/{KEY}/session?id=long").text
    assert "word 999" in page and "word 5<" not in page
    assert "word 5<" in client.get(f"/{KEY}/session?id=long&message=6").text


def test_other_pages(client: TestClient) -> None:
    """Requests of other pages and of other names are refused; every page has the policy."""
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    for path in ("/", f"/{KEY}/sessions", f"/{KEY}/session?id=s1", "/nothing", "/static/pages.js"):
        assert client.get(path).headers["content-security-policy"] == SERVED_POLICY, path


def test_stored_page(lake: Lake, client: TestClient) -> None:
    """A stored page is served in a sandbox, because an older version may have written it."""
    lakes.artifact(lake, "evaluation", KEY, files={"report.html": "<p>figures"})
    answer = client.get(f"/{KEY}/evaluation")
    assert answer.text == "<p>figures"
    assert answer.headers["content-security-policy"] == STORED_POLICY


def hostile_row(text: str) -> dict[str, Any]:
    """A session in which every text is hostile."""
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        calls((text, {text: text}), content=text),
        result(text),
        calls((text, text), content=text),
        result(json.dumps({"error": text})),
        {"role": "assistant", "content": text},
    ]
    opinion = {"verdict": "unacceptable", "reason": text, "name": text, "pending": False}
    return judged_row(
        f"hostile {text[:200]}".encode("utf-8", "replace").decode(),
        messages,
        damage={text: 1},
        task_key=text,
        model_id=text,
        verdict="unacceptable",
        verdict_by=text,
        verdict_reasons=text,
        opinions={text: opinion},
    )


def test_same_elements(lake: Lake, client: TestClient) -> None:
    """Whatever a session says, its page has the elements and attributes of a plain page."""

    def elements(text: str) -> list[tuple[str, list[str]]]:
        put_judged(lake, [hostile_row(text)])
        session_id = quote(hostile_row(text)["session_id"], safe="")
        page = client.get(f"/{KEY}/session?id={session_id}").text
        assert "\u202e" not in page and "\u200b" not in page
        return [(tag, list(attributes)) for tag, attributes in Elements(page).found]

    plain = elements("plain")
    for text in HOSTILE[:8]:
        assert elements(text) == plain, text


@pytest.mark.slow
def test_files(tmp_path: Path, tab: Tab) -> None:
    """The pages as single files load nothing, lead to each other, and run no session's script."""
    from agent_pipeline.pages.files import write_pages

    lake = Lake(str(tmp_path / "lake"))
    put_judged(lake, [*ROWS, *(hostile_row(text) for text in HOSTILE)])
    index = write_pages(Settings(lake=str(lake.root)), KEY, tmp_path / "out", 50)
    links = [
        attributes["href"]
        for tag, attributes in Elements(index.read_text("utf-8")).found
        if tag == "a" and str(attributes.get("href")).startswith("session-")
    ]
    assert len(set(links)) == len(ROWS) + len(HOSTILE)
    assert {page.name for page in index.parent.glob("*.html")} == {
        *links,
        "sessions.html",
        "night.html",
    }
    for link in links:
        page = (tmp_path / "out" / str(link)).read_text("utf-8")
        assert "src=" not in {name for _, a in Elements(page).found for name in a}
    # As if a template had forgotten to escape: the policy names the page's own script only.
    file = tmp_path / "out" / str(links[0])
    file.write_text(file.read_text("utf-8").replace("<main>", f"<main>{HOSTILE[0]}{HOSTILE[1]}", 1))
    tab.open(file.as_uri())
    assert "data-taken" not in tab.html().split("<body>")[0]


def put_episodes(lake: Lake, text: str, players: Sequence[str] = ("base", "model")) -> None:
    """Two episodes of each player, of which the model's second episode does harm."""
    lines = [
        {
            "player": player,
            "task_key": f"{task} {text}",
            "trial": 0,
            "seed": None,
            "done": not task,
            "wrong_changes": [text] if task and player == "model" else [],
            "complaint": text,
            "end": "answered",
            "messages": [
                {"role": "user", "content": f"{text} \u2028 {player}"},
                calls((text, {text: text}), content=text),
                result(text),
            ],
        }
        for player in players
        for task in range(2)
    ]
    # The first task, again in a variant: it is not the model's episode of the task as it is.
    first = next(line for line in lines if line["player"] == "model")
    lines.append(first | {"variant": text, "done": False, "wrong_changes": [text]})
    figures = msgspec.to_builtins(PlayerFigures(done=Share(1, 2), harm=Share(1, 2)))
    report = {
        "players": dict.fromkeys(players, figures),
        "against": [text],
        "variants": {text: {"varied": figures, "plain": figures, "harmful": [text]}},
    }
    body = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n"
    lakes.artifact(
        lake, "episodes", KEY, {"of": [text, *players]}, {"episodes.jsonl": body}, report
    )


def put_hostile_pages(lake: Lake) -> list[str]:
    """Fill a lake with hostile texts, and return the paths of all kinds of pages.

    The stored pages also contain scripts as if a template had forgotten to escape them.
    """
    rows = [hostile_row(text) for text in (*HOSTILE, " ".join(HOSTILE[:9]))]
    put_judged(lake, rows)
    text = " ".join(HOSTILE[:8])
    put_episodes(lake, text)
    stored = evaluation_page.page_of(evaluation_page.hostile_items(text), text)
    stored = stored.replace("</h1>", f"</h1>{HOSTILE[0]}{HOSTILE[1]}", 1)
    assert HOSTILE[0] in stored
    for asset in ("evaluation", CHAMPION):
        lakes.artifact(lake, asset, KEY, files={"report.html": stored})
    exported = lakes.artifact(lake, EXPORT, KEY, {"adapter": text}, {"model.gguf": "GGUF"})
    hold_back(lake, KEY, "", text)
    lake.set_champion(exported, text, text)
    none = Estimate(0)
    week = ModelWeek(
        week="2026-01-05",
        server="agent",
        model=text,
        sessions=1,
        tasks=1,
        with_help=0,
        **dict.fromkeys(ModelWeek.__struct_fields__[6:], none),
    )
    share = Estimate(9, 0.5, 0.3, 0.7)
    comparison = ProductionComparison(
        rival="agent",
        champion_share=share,
        rival_share=share,
        same_tasks=SameTasks(share, share, share),
        pairs=9,
        drop=share,
        p_value=0.5,
        allowed_error=0.01,
        margin=0.05,
        alarm_after=4,
    )
    production = ProductionReport(
        champion=text,
        previous=text,
        weeks=[week],
        totals=[week],
        comparisons=[comparison],
        notes=[text],
    )
    lakes.artifact(lake, "production", KEY, report=msgspec.to_builtins(production))
    night = Path(lake.root.path) / "nights" / "2026-01-02T0200.html"
    night.parent.mkdir()
    night.write_text(stored, encoding="utf-8")
    pages = ["sessions", "review", "evaluation", "decision", "episodes", "production", "night"]
    return [
        "/",
        f"/nights/{night.name}",
        *(f"/{KEY}/{page}" for page in pages),
        *(f"/{KEY}/session?id={quote(row['session_id'], safe='')}" for row in rows),
    ]


def test_hostile_pages_are_all_pages(lake: Lake, client: TestClient) -> None:
    """A new kind of page must be opened with hostile texts, too."""
    paths = put_hostile_pages(lake)
    opened_kinds = {
        path.partition("?")[0].replace(f"/{KEY}", "/{project}/{agent}") for path in paths
    }
    routes = {route.path for route in make_app(load_settings()).routes if "GET" in route.methods}
    kinds = {path.replace("/{name}", "/2026-01-02T0200.html") for path in routes}
    assert kinds - opened_kinds == {"/static/2026-01-02T0200.html"}
    assert {client.get(path).status_code for path in paths} == {200}


def open_and_touch(browser: Tab, address: str) -> None:
    """Open a page and everything in it, and check that no script of a session ran."""
    taken = "document.documentElement.dataset.taken ?? (document.title === 'taken' ? 'yes' : 'no')"
    browser.open(address)
    assert browser.evaluate("location.href") == address
    assert browser.evaluate("!!document.querySelector('main, h1')")
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.evaluate(
        "document.querySelectorAll('*').forEach(e => { e.focus?.(); "
        "e.dispatchEvent(new MouseEvent('mouseover')); })"
    )
    assert browser.evaluate(taken) == "no", address
    assert browser.evaluate("document.querySelectorAll('iframe, base').length") == 0


@pytest.mark.slow
def test_no_script_runs(tmp_path: Path, tab: Tab) -> None:
    """In a real browser, no script of a session runs, whatever is opened, focused and touched."""
    paths = put_hostile_pages(Lake(str(tmp_path / "lake")))
    with serving(tmp_path, "pages") as (address, _):
        for path in paths:
            open_and_touch(tab, address + path)
            hrefs = tab.evaluate("[...document.links].map(link => link.protocol)")
            assert set(hrefs) <= {"http:"}, path


@pytest.mark.slow
def test_no_script_runs_in_files(tmp_path: Path, tab: Tab) -> None:
    """The same pages as single files run no script of a session, either."""
    from agent_pipeline.pages.files import write_pages

    lake = Lake(str(tmp_path / "lake"))
    put_hostile_pages(lake)
    folder = write_pages(Settings(lake=str(lake.root)), KEY, tmp_path / "out", 50).parent
    files = {path.name for path in folder.glob("*.html")}
    kinds = {"sessions", "night", "evaluation", "decision", "episodes", "production"}
    assert {name.removesuffix(".html") for name in files if "session-" not in name} == kinds
    for path in sorted(folder.glob("*.html")):
        open_and_touch(tab, path.as_uri())


@pytest.mark.parametrize("players", [("base", "model"), ("model",)])
def test_episodes(lake: Lake, client: TestClient, players: Sequence[str]) -> None:
    """The episode with harm comes first, with the transcripts of all players."""
    put_episodes(lake, "refund", players)
    page = client.get(f"/{KEY}/episodes").text
    assert "It did harm in 1 of 2 episodes." in page
    items = [a["id"] for tag, a in Elements(page).found if a.get("class") == "item"]
    assert items == [
        "episode-0 refund-None-0-refund",
        "episode-1 refund-None-0",
        "episode-0 refund-None-0",
    ]
    assert page.count("wrong change</span>") == 2
    assert "The model in variants of the tasks" in page


def test_hostile_episodes(lake: Lake, client: TestClient) -> None:
    def elements(text: str) -> list[tuple[str, list[str]]]:
        put_episodes(lake, text)
        page = client.get(f"/{KEY}/episodes").text
        return [(tag, list(attributes)) for tag, attributes in Elements(page).found]

    plain = elements("plain")
    for text in HOSTILE[:8]:
        assert elements(text) == plain, text


def test_nights(lake: Lake, client: TestClient) -> None:
    """The page of nights says which model is served, and lists what people decided."""
    assert "No model of this agent is served yet." in client.get(f"/{KEY}/night").text
    exported = lakes.artifact(lake, EXPORT, KEY, {"adapter": "a"}, {"model.gguf": "GGUF"})
    held = hold_back(lake, KEY, "", "too <b>much</b> harm")
    won = replace(held.decision, outcome="promote", reasons=())
    open_ledger(lake, KEY).append(lambda number: replace(held, number=number, decision=won))
    first_page = client.get("/").text
    assert "<small>promote, and a person holds it back (" in first_page
    lake.set_champion(exported, "good", "ana")
    page = client.get(f"/{KEY}/night").text
    assert "ana made it the champion." in page and "too &lt;b&gt;much&lt;/b&gt; harm" in page
    assert client.get("/").text.count("a model is served") == 1


def test_whole_night(lake: Lake, client: TestClient) -> None:
    """The first page leads to the pages of nights, and no other file of the lake can be read."""
    (Path(lake.root.path) / "nights").mkdir()
    (Path(lake.root.path) / "nights" / "2026-01-02T0200.html").write_text("<p>all fine", "utf-8")
    assert 'href="/nights/2026-01-02T0200.html"' in client.get("/").text
    assert client.get("/nights/2026-01-02T0200.html").text == "<p>all fine"
    for name in ("2026-01-03T0200.html", "..%2flake.json", "lake.json"):
        assert client.get(f"/nights/{name}").status_code == 404, name
