"""Running servers as stores: recorded answers of a real Phoenix and a real MLflow (`written/`), served again over HTTP, and a server here
that pages, cuts and leaves out as Langfuse's API does."""

import base64
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.sources import open_source, parse_location
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.sources.platforms.exports import WHOLE, written
from agent_pipeline_tests.sources.platforms.test_platforms import unnumbered

PLATFORMS = {"phoenix": "shop/support", "mlflow": "1/support", "langfuse": "shop/support"}
FETCHES = ("/spans", "/traces/get", "/v2/observations")
"""How the addresses end that give what was said."""


class Server:
    """Answers as a server did at its looks so far; `asked` are the addresses and what they were asked for."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.looks = self.recorded()
        self.answers: dict[Any, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.login: str | None = None
        self.reply: Callable[[str, bytes], tuple[int, bytes]] = lambda path, body: (200, body)
        self.look()

    def recorded(self) -> list[Any]:
        """For each look, the requests and their answers."""
        return written(f"{self.platform}_server.jsonl")

    def answer(self, method: str, path: str, about: dict[str, Any]) -> Any:
        return self.answers.get(_key(method, path, about))

    def look(self) -> None:
        """What came until the next look is there."""
        self.answers |= {
            _key(method, path, about): value for method, path, about, value in self.looks.pop(0)
        }

    def change(self, end: str, change: Callable[[Any], None]) -> None:
        """Change the answers of the addresses that end so."""
        for (_, path, _), value in self.answers.items():
            if path.endswith(end):
                change(value)

    @property
    def fetched(self) -> list[Any]:
        """The traces that were asked for, once each."""
        found = [
            about.get("trace_id", about.get("traceId", ()))
            for path, about in self.asked
            if path.endswith(FETCHES)
        ]
        return list(dict.fromkeys(trace for each in found for trace in each))

    def source(self, cache: Path | None = None, query: str = "") -> Any:
        return open_source(parse_location(f"{self.platform}+{self.url}{query}"), cache=cache)


def _key(method: str, path: str, about: dict[str, Any]) -> Any:
    lists = {
        name: [str(each) for each in (value if isinstance(value, list) else [value])]
        for name, value in about.items()
    }
    return method, path, json.dumps(about if method == "POST" else lists, sort_keys=True)


STEPS, SCORES = "/api/public/v2/observations", "/api/public/v3/scores"
GROUPS = {
    "basic": ("name", "level", "sessionId", "isRootObservation"),
    "time": ("updatedAt",),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("model", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "trace_context": ("traceName", "tags"),
}
CORE = ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type")


class Langfuse(Server):
    """A Langfuse 4 with the observations and scores in `items`; no page holds more than `largest`."""

    largest = 1000

    def recorded(self) -> list[Any]:
        steps, scores = (
            [{"updatedAt": "2026-11-23T03:00:00Z"} | each for each in page["data"]]
            for page in written("langfuse_api.jsonl")
        )
        new = [
            each | {"id": f"{each['id']}2", "traceId": "t2", "sessionId": "s2"}
            for each in steps
            if each["traceId"] == steps[0]["traceId"]
        ]
        return [
            [("GET", STEPS, {}, {"data": now}), ("GET", SCORES, {}, {"data": scores})]
            for now in (steps, [*steps, *new])
        ]

    def items(self, path: str) -> list[dict[str, Any]]:
        return self.answers[_key("GET", path, {})]["data"]

    def answer(self, method: str, path: str, about: dict[str, Any]) -> Any:
        if path == "/api/public/projects":
            return {
                "data": [
                    {
                        "id": "shop",
                        "name": "shop",
                        "organization": {"id": "o", "name": "o"},
                        "metadata": {},
                    }
                ]
            }
        asked = {name: value[0] for name, value in about.items()}
        of, limit = (
            "startTime" if path == STEPS else "timestamp",
            min(int(asked["limit"]), self.largest),
        )
        found = sorted(
            ((each[of], each["id"]), each)
            for each in self.items(path)
            if each.get("traceId") == asked.get("traceId", each.get("traceId"))
        )
        if "cursor" in asked:
            last = tuple(json.loads(base64.b64decode(asked["cursor"])))
            found = [each for each in found if each[0] < last]
        page, rest = found[: -limit - 1 : -1], found[:-limit]
        meta = {"limit": limit} if path == SCORES else {}
        meta |= (
            {"cursor": base64.b64encode(json.dumps(page[-1][0]).encode()).decode()} if rest else {}
        )
        return {
            "data": [self.shown(each, asked) if path == STEPS else each for _, each in page],
            "meta": meta,
        }

    def shown(self, each: dict[str, Any], asked: dict[str, str]) -> dict[str, Any]:
        whole, names = (
            asked.get("expandMetadata", "").split(","),
            [*CORE, *(name for of in asked["fields"].split(",") for name in GROUPS.get(of, ()))],
        )
        cut = {
            name: value if name in whole else value[:200]
            for name, value in each.get("metadata", {}).items()
        }
        return {name: (each | {"metadata": cut}).get(name) for name in names}


@contextmanager
def serving(platform: str) -> Iterator[Any]:
    server = {"langfuse": Langfuse}.get(platform, Server)(platform)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url, length = urlsplit(self.path), int(self.headers["Content-Length"] or 0)
            about = json.loads(self.rfile.read(length)) if length else parse_qs(url.query)
            server.login = self.headers["Authorization"]
            server.asked.append((url.path, about))
            found = server.answer(self.command, url.path, about)
            status, body = server.reply(
                url.path, b"never recorded" if found is None else json.dumps(found).encode()
            )
            self.send_response(404 if body == b"never recorded" else status)
            self.send_header("Retry-After", "0")
            self.send_header(
                "Content-Length", str(len(body) + 9 * (status == 299))
            )  # 299: the connection ends within the answer
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


@pytest.fixture(params=PLATFORMS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as served:
        yield served


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    return text


def test_a_servers_session_is_what_was_played_with_what_was_said_of_it(server):
    source = server.source()
    (key,) = source.partitions()
    (session,) = source.sessions(key)
    assert (str(key), session.session_id, unnumbered(session.messages)) == (
        PLATFORMS[server.platform],
        "s1",
        unnumbered(WHOLE),
    )
    assert [tool["function"]["name"] for tool in session.tools] == ["look_up"]
    assert session.scores["helpfulness"] == 0.5 and not session.damage and not source.notes
    assert session.judgment == ("acceptable" if server.platform == "phoenix" else None)


def test_a_night_fetches_the_session_that_came_and_copies_the_other(server, tmp_path):
    lake, cache = Lake(tmp_path / "lake"), tmp_path / "cache"
    source = server.source(cache)
    (key,) = source.partitions()
    ingest(source, key, ReadingOptions(), lake).table.commit()
    first, signature = server.fetched, source.partition_signature(key)
    server.asked.clear()
    again = server.source(cache)
    assert (again.partition_signature(key), again.signature()) == (signature, source.signature())
    assert ingest(again, key, ReadingOptions(), lake).copied == 1 and not server.fetched

    server.look()
    server.asked.clear()
    new = server.source(cache)
    assert new.signature() != source.signature() and new.partition_signature(key) != signature
    found = ingest(new, key, ReadingOptions(), lake)
    assert (found.copied, [row["session_id"] for row in found.first]) == (1, ["s1", "s2"])
    assert len(server.fetched) == 1 and server.fetched[0] not in first
    assert [each.session_id for each in server.source(cache).sessions(key)] == ["s1", "s2"]


def test_a_session_is_fetched_again_when_what_is_said_of_it_changes(server, tmp_path):
    def annotate(value: Any) -> None:
        for each in value.get("data", ()):
            each |= (
                {"result": {**each["result"], "label": "bad"}} if "result" in each else {"value": 0}
            )
        for each in (
            said for trace in value.get("traces", ()) for said in trace.get("assessments", ())
        ):
            each["feedback"] = {"value": 0.25}

    source = server.source(tmp_path)
    (key,) = source.partitions()
    (before,) = source.stored(key)
    server.change(
        {"phoenix": "/trace_annotations", "mlflow": "/traces/search", "langfuse": SCORES}[
            server.platform
        ],
        annotate,
    )
    server.asked.clear()
    (after,) = server.source(tmp_path).stored(key)
    assert after.digest != before.digest and server.fetched


def test_what_was_remembered_is_of_no_effect_where_it_is_damaged_and_tells_nothing_that_was_said(
    server, tmp_path
):
    (key,) = server.source(tmp_path).partitions()
    (stored,) = server.source(tmp_path).stored(key)
    (file,) = tmp_path.iterdir()
    assert not any(
        words in file.read_bytes() for words in (b"order", b"Ulm", b"Thanks", b"helpful")
    )
    file.write_bytes(b"no database at all")
    for _ in range(2):
        (again,) = server.source(tmp_path).stored(key)
        assert again.digest == stored.digest and again.build().messages == stored.build().messages
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM known").fetchone()[0]


def test_the_store_of_the_settings_remembers_in_their_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_STORE", f"{server.platform}+{server.url}")
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path))
    source = load_settings().open_store()
    assert [each.session_id for key in source.partitions() for each in source.stored(key)] == ["s1"]
    assert len(list((tmp_path / "servers").iterdir())) == 1


FAILURES = {
    "refused": ("", lambda path, body: (401, b""), "refuses access .401.: set "),
    "out of order": (
        "",
        lambda path, body: (500, b"boom") if path.endswith(FETCHES) else (200, body),
        "cannot be used .*500 boom",
    ),
    "no JSON": (
        "",
        lambda path, body: (200, b"<html>log in</html>"),
        "JSON.*address in the setting .store",
    ),
    "no object": ("", lambda path, body: (200, b"[]"), "object"),
    "elsewhere": ("", lambda path, body: (302, b""), "cannot be used .*302"),
    "cut off": ("", lambda path, body: (299, body), "cannot be reached"),
    "another object": ("", lambda path, body: (200, b'{"detail": "log in"}'), "list of objects"),
    "an odd page": (
        "",
        lambda path, body: (200, b'{"data": {}, "experiments": [1]}'),
        "list of objects",
    ),
    "a page again and again": (
        "",
        lambda path, body: (
            200,
            b'{"data": [], "experiments": [], "next_cursor": "x", "next_page_token": "x", "meta": {"cursor": "x"}}',
        ),
        "the next page is the same page",
    ),
    "unknown project": (
        "?{project}=nowhere",
        lambda path, body: (200, body),
        "has no (project|experiment) nowhere: it has .*shop",
    ),
    "unknown wish": (
        "?colour=red",
        lambda path, body: (200, body),
        "has the query colour: end its address",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_server_that_cannot_be_read_to_the_end_costs_one_sentence_and_gives_no_session(
    server, failure
):
    query, server.reply, expected = FAILURES[failure]
    with pytest.raises(StoreError, match=expected) as error:
        source = server.source(
            query=query.format(project="experiment" if server.platform == "mlflow" else "project")
        )
        for key in source.partitions():
            list(source.stored(key))
    assert "127.0.0.1" in sentence(error)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_server_that_is_not_there_is_said(platform):
    with serving(platform) as server:
        pass
    with pytest.raises(StoreError, match=r"cannot be reached .*: start the server") as error:
        server.source().partitions()
    sentence(error)


@pytest.mark.parametrize("server", ["phoenix", "mlflow"], indirect=True)
def test_the_pages_of_a_look_are_followed_to_the_last(server):
    server.look()
    listing = {"phoenix": "/traces", "mlflow": "/traces/search"}[server.platform]
    for (method, path, about), value in list(server.answers.items()):
        items, cursor = (
            ("data", "cursor") if server.platform == "phoenix" else ("traces", "page_token")
        )
        if path.endswith(listing) and len(value.get(items, ())) > 1:
            token = "x" if method == "POST" else ["x"]
            server.answers[
                method, path, json.dumps(json.loads(about) | {cursor: token}, sort_keys=True)
            ] = {items: value[items][1:]}
            server.answers[method, path, about] = {items: value[items][:1], f"next_{cursor}": "x"}
    source = server.source()
    assert sum(len(traces) for traces in source._service.heads.values()) == 3
    assert (
        len([path for path, _ in server.asked if path.endswith(listing)]) == 3
    )  # the other project's is one


@pytest.mark.parametrize("server", ["phoenix", "mlflow"], indirect=True)
def test_a_failure_between_two_pages_leaves_the_last_table_as_it_is(server, tmp_path):
    lake = Lake(tmp_path / "lake")
    source = server.source()
    (key,) = source.partitions()
    ingest(source, key, ReadingOptions(), lake).table.commit()
    before = lake.table("sessions", key).read_bytes()
    more = {"next_cursor": "x", "next_page_token": "x"}
    server.change(
        {"phoenix": "/traces", "mlflow": "/traces/search"}[server.platform],
        lambda value: value.update(more if value else {}),
    )
    with pytest.raises(StoreError, match="never recorded"):  # the second page
        ingest(server.source(), key, ReadingOptions(), lake)
    assert lake.table("sessions", key).read_bytes() == before


def test_spans_that_went_between_the_look_and_the_fetch_are_no_shorter_session():
    with serving("phoenix") as server:
        source = server.source()
        (key,) = source.partitions()
        server.change("/spans", lambda value: value["data"].pop())
        with pytest.raises(StoreError, match="lost spans"):
            list(source.sessions(key))


@pytest.mark.parametrize(
    ("platform", "variables", "login"),
    [
        ("phoenix", {"PHOENIX_API_KEY": "k"}, "Bearer k"),
        ("mlflow", {"MLFLOW_TRACKING_TOKEN": "t"}, "Bearer t"),
        (
            "mlflow",
            {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw"},
            "Basic bWU6cHc=",
        ),
        ("langfuse", {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}, "Basic cGs6c2s="),
        ("phoenix", {}, None),
        ("mlflow", {}, None),
        ("langfuse", {}, None),
    ],
)
def test_who_asks_is_what_the_platforms_own_variables_say(monkeypatch, platform, variables, login):
    for name in (
        "PHOENIX_API_KEY",
        *(f"MLFLOW_TRACKING_{each}" for each in ("TOKEN", "USERNAME", "PASSWORD")),
        "LANGFUSE_PUBLIC_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with serving(platform) as server:
        assert server.source().partitions() and server.login == login


@pytest.fixture
def langfuse() -> Iterator[Any]:
    with serving("langfuse") as server:
        yield server


def only(source: Any) -> Any:
    (key,) = source.partitions()
    (session,) = source.sessions(key)
    return session


def test_langfuses_pages_of_one_are_followed_to_the_last_and_one_that_fails_ends_the_reading(
    langfuse,
):
    whole = only(langfuse.source())
    langfuse.largest = 1
    langfuse.asked.clear()
    assert only(langfuse.source()) == whole
    assert [
        len([path for path, _ in langfuse.asked if path == each]) for each in (STEPS, SCORES)
    ] == [5 + 5, 4]
    for last in range(1, 1 + 4 + 5):
        langfuse.asked.clear()
        langfuse.reply = lambda path, body, last=last: (
            (500, b"boom") if len(langfuse.asked) > last else (200, body)
        )
        with pytest.raises(StoreError, match="500 boom"):
            langfuse.source().partitions()


def test_a_score_and_an_observation_that_come_days_later_are_seen_by_the_next_look(
    langfuse, tmp_path
):
    before = only(langfuse.source(tmp_path))
    steps, scores = langfuse.items(STEPS), langfuse.items(SCORES)
    scores.append(
        scores[1]
        | {"id": "late", "name": "solved", "value": "fail", "timestamp": "2026-11-29T00:00:00Z"}
    )
    langfuse.asked.clear()
    after = only(langfuse.source(tmp_path))
    assert after.scores == before.scores | {"solved": 0.0} and langfuse.fetched
    steps.remove(
        late := next(
            each for each in steps if each["type"] == "GENERATION" and "Thanks" in each["input"]
        )
    )
    assert len(only(langfuse.source(tmp_path)).messages) == 5
    steps.append(late)
    assert only(langfuse.source(tmp_path)).messages == before.messages


def test_of_two_states_of_an_observation_that_langfuse_lists_the_later_counts(langfuse):
    before, steps = only(langfuse.source()), langfuse.items(STEPS)
    digest = langfuse.source().signature()
    for start in ("2026-11-01T00:00:00Z", "2026-11-29T00:00:00Z"):
        steps.append(
            steps[0]
            | {
                "startTime": start,
                "updatedAt": "2026-11-01T00:00:00Z",
                "output": "stale",
                "sessionId": "s1",
            }
        )
        source = langfuse.source()
        assert (only(source), source.signature()) == (before, digest)


def test_scores_of_what_langfuse_does_not_list_are_counted(langfuse):
    scores = langfuse.items(SCORES)
    subjects = [
        {"kind": "trace", "id": "gone"},
        {"kind": "session", "id": "gone"},
        {"kind": "experiment", "id": "e"},
    ]
    scores += [
        scores[0] | {"id": f"stray {at}", "subject": each} for at, each in enumerate(subjects)
    ]
    source = langfuse.source()
    assert only(source).scores == {"helpfulness": 0.5, "grade": 1.0, "polite": 1.0}
    (note,) = source.notes
    assert "3 records of langfuse belong to no session and were left out" in note


def test_metadata_that_langfuse_cuts_is_asked_for_whole(langfuse):
    long = {"plan": "x" * 201, "reason": "y" * 5000, "short": "z" * 199}
    for each in langfuse.items(STEPS):
        each["metadata"] = each["metadata"] | long
    context = only(langfuse.source()).context
    assert {name: context[name] for name in long} == long


def test_an_observation_that_went_between_langfuses_look_and_the_fetch_is_no_shorter_session(
    langfuse,
):
    source = langfuse.source()
    (key,) = source.partitions()
    langfuse.items(STEPS).pop()
    with pytest.raises(StoreError, match="lost spans"):
        list(source.sessions(key))


def test_a_server_that_is_asked_too_often_is_asked_again_when_it_says_so(server):
    replies = iter([429, 429, 200, 429])
    server.reply = lambda path, body: (next(replies, 200), body)
    assert [str(key) for key in server.source().partitions()] == [PLATFORMS[server.platform]]
    server.reply = lambda path, body: (429, b"too many")
    with pytest.raises(StoreError, match="429 too many"):
        server.source().partitions()
