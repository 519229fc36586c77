"""Private values that nobody has, planted in every place of the sessions of a store, and a search for them in files.

The search is independent of the package's own: it reads bytes, members of archives, cells of Parquet and SQLite, and
encoded forms of each value.
"""

import base64
import csv
import gzip
import hashlib
import html
import json
import random
import sqlite3
import string
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline_tests.judging.endpoint import Endpoint
from agent_pipeline_tests.stores import execute

KINDS = ("secret", "email", "phone", "name", "password")
SENTENCES = "My key is {secret}, my mail {email}, my phone {phone}. The password is {password} and I am {name}."


@dataclass
class PrivateValues:
    """Values by the place that they were planted in.

    Attributes:
        by_place: the values, by place and kind, such as `("user", "email")`.
    """

    by_place: dict[tuple[str, str], str] = field(default_factory=dict)
    generator: random.Random = field(default_factory=lambda: random.Random(7))

    def add(self, place: str, kind: str, value: str) -> str:
        """Remember a value and return it."""
        self.by_place[place, kind] = value
        return value

    def sentence(self, place: str) -> str:
        """Return a sentence with a new value of each kind, one sentence per place."""
        first, last = self._letters(7).title(), self._letters(8).title()
        values = {
            "secret": "gh" + "p_" + self._some(36, string.ascii_letters + string.digits),
            "email": f"{first}.{last}@{self._letters(9)}.io".lower(),
            "phone": f"+1 415 {self.generator.randint(220, 989)} {self._some(4, string.digits)}",
            "password": f"{self._letters(5)}{self._some(4, string.digits)}{self._letters(3)}",
        }
        for kind, value in values.items():
            self.add(place, kind, value)
        self.add(place, "name", f"{first} {last}")
        return SENTENCES.format(**values, name=f"{first} {last}")

    def needles(self) -> dict[str, list[bytes]]:
        """Return the spellings to search for, in small letters, by the name of the value."""
        needles = {}
        for (place, kind), value in self.by_place.items():
            parts = [value, *value.split()] if kind == "name" else [value]
            needles[f"{place} {kind}"] = [text for part in parts for text in spellings(part)]
        return needles

    def _letters(self, count: int) -> str:
        return self._some(count, string.ascii_lowercase)

    def _some(self, count: int, alphabet: str) -> str:
        return "".join(self.generator.choices(alphabet, k=count))


def spellings(value: str) -> set[bytes]:
    """Return how a value may be written in a file: plain, escaped, encoded; in small letters."""
    encoded = value.encode()
    texts = {
        value,
        json.dumps(value)[1:-1],
        html.escape(value),
        quote(value, safe=""),
        quote(value),
        value.replace(" ", "+"),
        value[::-1],
    }
    for shift in range(3):
        base64_text = base64.b64encode(b"\0" * shift + encoded).decode().rstrip("=")
        texts.add(base64_text[(0, 2, 3)[shift] : -1])
    return {text.lower().encode() for text in texts if len(text) >= 5}


def plant_in_store(home: Path, key: str, values: PrivateValues) -> None:
    """Change the sessions of an agent in a copy of the sample: each place of a session gets values of its own.

    A session has the values of every fifth place, since a tiny model reads no long session. Sessions of each split have
    those of each place.
    """
    database = home / "sessions" / key / "sessions.db"
    sentences = {
        place: values.sentence(place)
        for place in (
            "system", "user", "assistant", "arguments", "argument name", "result", "nested result", "thought",
            "tool description", "tool schema", "context", "context key", "verdict reason", "unknown item", "user id",
            "damaged item",
        )
    }  # fmt: skip
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute("SELECT session_id, context_json FROM sessions").fetchall()
        chosen_by_session = {
            session_id: _chosen(sentences, number) for number, (session_id, _) in enumerate(rows)
        }
        history = connection.execute("SELECT id, session_id, msg_json FROM history").fetchall()
        for item_id, session_id, text in history:
            chosen = chosen_by_session[session_id]
            try:
                changed = json.dumps(_planted(json.loads(text), chosen))
            except json.JSONDecodeError:
                changed = text + sentences["damaged item"]
            connection.execute("UPDATE history SET msg_json = ? WHERE id = ?", (changed, item_id))
        for session_id, text in rows:
            chosen = chosen_by_session[session_id]
            context = json.loads(text or "{}")
            context["note"] = chosen["context"]
            context[chosen["context key"]] = 1
            for tool in context.get("tools", ()):
                tool["function"]["description"] = chosen["tool description"]
                properties = tool["function"]["parameters"]["properties"]
                for schema in properties.values():
                    schema["description"] = chosen["tool schema"]
            connection.execute(
                "UPDATE sessions SET context_json = ?, user_id = ? WHERE session_id = ?",
                (json.dumps(context), chosen["user id"], session_id),
            )
        # A thought stands before the first message, and one session has an item that no reader knows.
        for number, (session_id, _) in enumerate(rows, 1):
            thought = chosen_by_session[session_id]["thought"] or "nothing"
            summary = [{"type": "summary_text", "text": thought}]
            items = [(-number, {"type": "reasoning", "summary": summary})]
            if number == 1:
                items.append((10**9, {"type": "strange_thing", "text": sentences["unknown item"]}))
            for item_id, item in items:
                connection.execute(
                    "INSERT INTO history (id, session_id, msg_json) VALUES (?, ?, ?)",
                    (item_id, session_id, json.dumps(item)),
                )
    execute(
        home / "traces" / f"{key.partition('/')[0]}.db",
        ("UPDATE analysis SET reason = ?", [sentences["verdict reason"]]),
    )


PLACES_SHARE = 5


def _chosen(sentences: dict[str, str], number: int) -> dict[str, str]:
    """Return the sentences of the places that a session gets; the others are empty."""
    return {
        place: sentence if index % PLACES_SHARE == number % PLACES_SHARE else ""
        for index, (place, sentence) in enumerate(sentences.items())
    }


def _planted(item: dict[str, Any], sentences: dict[str, str]) -> dict[str, Any]:
    role, kind = item.get("role"), item.get("type")
    if kind == "function_call":
        arguments = json.loads(item["arguments"]) | (
            {"note": sentences["arguments"]} if sentences["arguments"] else {}
        )
        if sentences["argument name"]:
            arguments[sentences["argument name"]] = "1"
        return item | {"arguments": json.dumps(arguments)}
    if kind == "function_call_output":
        nested = json.dumps({"log": json.dumps({"text": sentences["nested result"]})})
        return item | {"output": f"{item['output']}\n{sentences['result']}\n{nested}"}
    if role == "assistant" and isinstance(item["content"], list):
        parts = [
            part | {"text": f"{part['text']} {sentences['assistant']}"} for part in item["content"]
        ]
        return item | {"content": parts}
    if role in ("user", "system"):
        return item | {"content": f"{item['content']} {sentences[str(role)]}"}
    return item


def secret_settings(
    folder: Path, key: str, values: PrivateValues, judge: Endpoint, people: Endpoint
) -> dict[str, str]:
    """Return the variables of a user whose settings hold secrets.

    Args:
        folder: Where files lie that are not searched: the sessions (`store`) and the labels.
        key: The agent with the sessions.
        values: The private values.
        judge: The endpoint of the judge.
        people: The endpoint of notifications.
    """
    rows = [
        {"session_id": session_id, "judgment": "acceptable", "reason": values.sentence("label")}
        for session_id in sessions_of(folder / "store", key)[:1]
    ]
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["session_id", "judgment", "reason"])
        writer.writeheader()
        writer.writerows(rows)
    judge_password = values.add("judge endpoint", "password", "judge7pw9zqk")
    told = values.add("notify address", "password", "notify8pw3xvb")
    judge_key = values.add("judge key", "secret", "judgekey9x8c7v6b5n4m")
    token = values.add("hub token", "secret", "hf" + "_QpLmNzRtYwXsVbGkJhFdCaEuOiTrWqPsLk")
    return {
        "AGENT_PIPELINE_STORE": str(folder / "store"),
        "AGENT_PIPELINE_LABELS": str(folder / "labels.csv"),
        "AGENT_PIPELINE_JUDGE__ENDPOINT": judge.url.replace("//", f"//bob:{judge_password}@"),
        "AGENT_PIPELINE_JUDGE__MODEL": "m",
        "AGENT_PIPELINE_NOTIFY__URLS": json.dumps(
            [people.url.replace("http://", f"json://bob:{told}@")]
        ),
        "OPENAI_API_KEY": judge_key,
        "HF_TOKEN": token,
    }


def sessions_of(store: Path, key: str) -> list[str]:
    with closing(sqlite3.connect(store / "sessions" / key / "sessions.db")) as connection:
        return [row[0] for row in connection.execute("SELECT session_id FROM sessions ORDER BY 1")]


def search_files(folder: Path, values: PrivateValues, skip: tuple[Path, ...] = ()) -> list[str]:
    """Return `path: place kind` for every planted value in a file of a folder, in any spelling."""
    needles = values.needles()
    found = set()
    names_by_digest: dict[bytes, list[str]] = {}  # many files have the same content
    for path in sorted(folder.rglob("*")):
        if (
            path.is_symlink()
            or not path.is_file()
            or any(path.is_relative_to(each) for each in skip)
        ):
            continue
        for piece in pieces_of(path):
            digest = hashlib.sha256(piece).digest()
            if digest not in names_by_digest:
                small = piece.lower()
                names_by_digest[digest] = [
                    name for name, texts in needles.items() if any(text in small for text in texts)
                ]
            found.update(f"{path.relative_to(folder)}: {name}" for name in names_by_digest[digest])
    return sorted(found)


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield what a file holds: its bytes, and its content decoded."""
    content = path.read_bytes()
    yield content
    if content[:2] == b"\x1f\x8b":
        yield gzip.decompress(content)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
    if content[:4] == b"PAR1":
        table = pq.read_table(path)
        for column in table.columns:
            for chunk in column.chunks:
                plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
                yield from (buffer.to_pybytes() for buffer in plain.buffers() if buffer)
    if content[:15] == b"SQLite format 3":
        yield from _cells_of(path)


def _cells_of(path: Path) -> Iterator[bytes]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.text_factory = bytes
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for (table,) in tables:
            for row in connection.execute(f'SELECT * FROM "{table.decode()}"'):
                for cell in row:
                    if isinstance(cell, bytes):
                        yield cell
                        yield from _unpacked(cell)


def _unpacked(cell: bytes) -> Iterator[bytes]:
    for unpack in (zlib.decompress, gzip.decompress):
        try:
            yield unpack(cell)
        except (zlib.error, OSError, EOFError):
            continue
