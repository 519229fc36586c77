"""An OpenAI-compatible endpoint that answers as a test says, over real HTTP."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Response = tuple[int, dict[str, str], str]


def says(content: str | None, tokens: tuple[int, int] | None = (100, 10)) -> Response:
    """A completion with this text and usage."""
    usage = (
        {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
        if tokens
        else None
    )
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": content},
    }
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return 200, {}, json.dumps(body)


def verdict(name: str = "acceptable", reason: str = "because") -> Response:
    return says(json.dumps({"reason": reason, "verdict": name}))


def refuses(status: int, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (
        status,
        named,
        json.dumps({"error": {"message": "no", "type": "error", "code": None, "param": None}}),
    )


@dataclass
class Endpoint:
    """`requests` are the bodies in order, `most_at_once` how many were open together."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0

    @property
    def questions(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests]


@contextmanager
def endpoint(answer: Callable[[Request, int], Response]) -> Iterator[Endpoint]:
    """Serve; `answer` is given the request and its number from 0."""
    seen, lock, open_now = Endpoint(), threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(seen.requests)
                seen.requests.append(body)
                seen.headers.append({name.lower(): value for name, value in self.headers.items()})
                open_now[0] += 1
                seen.most_at_once = max(seen.most_at_once, open_now[0])
            try:
                status, headers, text = answer(body, number)
            finally:
                with lock:
                    open_now[0] -= 1
            try:
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                pass  # the client has stopped waiting

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
