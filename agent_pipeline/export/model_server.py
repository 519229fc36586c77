"""A server of exported models for clients: the program `llama-server`, or the installed binding.

The program offers all models of a preset. The binding (xllamacpp) is llama.cpp's server inside this
process, and offers one model. What a client sends belongs to `request_examples`.
"""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.export.llama import ListenAt, LlamaCpp
from agent_pipeline.export.serving_folder import Form
from agent_pipeline.sessions.session import Message

API_KEY = "LLAMA_API_KEY"
"""Environment variable with the key that clients must send, which llama-server reads itself."""
START_SECONDS, LOAD_SECONDS, STOP_SECONDS = 60.0, 900.0, 15.0
"""Time limits for the start of the server, for loading a model with its first answer, and for the
end of the server.
"""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Served:
    """A model that is served.

    Attributes:
        name: The name of the model in requests.
        form: The files of the model.
        n_ctx: The size of the context in tokens; 0 for the context of the model.
        preset: The preset of the program, which has a section with the name of the model.
        messages: A conversation of the agent, with which the program is tried.
    """

    name: str
    form: Form
    n_ctx: int
    preset: Path
    messages: Sequence[Message] = ({"role": "user", "content": "Hi"},)


@dataclass(frozen=True)
class RunningServer:
    """A server that has answered a request for the model.

    Attributes:
        url: The address of the server.
        description: Which program serves, and why.
        process: The program; `None` if the binding serves.
    """

    url: str
    description: str
    process: "subprocess.Popen[bytes] | None" = None

    def wait(self) -> None:
        """Wait until the server ends, or until the person interrupts.

        Raises:
            ExportError: The program ended.
        """
        if self.process is None:
            while True:
                time.sleep(3600)
        code = self.process.wait()
        raise ExportError(
            f"llama-server ended ({_describe_exit(code)}): read its log, and start it again."
        )


@contextmanager
def serve_model(
    served: Served, address: ListenAt, program: Path | None, log: Path
) -> Iterator[RunningServer]:
    """Serve a model until the context ends.

    The program is started and answers one request. If the program is missing, or crashes, the
    binding serves the model instead. A build of llama.cpp that uses instructions which the CPU does
    not have only crashes when it computes.

    Args:
        served: The model.
        address: The address to listen at.
        program: The program `llama-server`, or None.
        log: The file for the output of the program.

    Yields:
        The server, which has answered a request.

    Raises:
        ExportError: Neither the program nor the binding can serve the model.
    """
    reason = "llama-server is not on PATH"
    if program is not None:
        with _run_program(program, served, address, log) as process:
            failure = _find_failure(process, served, address)
            if not failure:
                yield RunningServer(
                    address.url, f"{program} serves all models of {served.preset}.", process
                )
                return
        reason = f"{program} {failure}; its log is {log}"
    template = served.form.chat_template
    with LlamaCpp(
        served.form.model,
        n_ctx=served.n_ctx,
        lora=served.form.lora,
        chat_template=template.read_text(encoding="utf-8") if template else "",
        listen_at=address,
    ):
        yield RunningServer(
            address.url,
            f"The installed binding of llama.cpp serves only {served.name}, and one request at a "
            f"time, because {reason}.",
        )


@contextmanager
def _run_program(
    program: Path, served: Served, address: ListenAt, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the program until the context ends."""
    command = [
        str(program),
        *("--models-preset", str(served.preset), "--models-max", "0"),
        *("--host", address.host, "--port", str(address.port)),
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _find_failure(process: "subprocess.Popen[bytes]", served: Served, address: ListenAt) -> str:
    """Ask the program for two tokens of a model. Return why it failed, or an empty text."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError):
            _ask(address, "/health", None, 5.0)
            break
        time.sleep(_POLL_SECONDS)
    if process.poll() is not None:
        return f"ended at once ({_describe_exit(process.returncode)})"
    body = {"model": served.name, "messages": list(served.messages), "max_tokens": 2}
    try:
        _ask(address, "/v1/chat/completions", body, LOAD_SECONDS)
    except urllib.error.HTTPError as error:
        text = " ".join(error.read().decode("utf-8", "replace").split())[:200]
        return f"could not answer a request ({error.code}: {text})"
    except OSError as error:
        return f"could not answer a request ({error})"
    return ""


def _ask(address: ListenAt, path: str, body: dict[str, Any] | None, seconds: float) -> None:
    """Send a request, and read the whole answer.

    Raises:
        OSError: The server cannot be reached, or answers with an error.
    """
    headers = {"Content-Type": "application/json"}
    if address.api_key:
        headers["Authorization"] = f"Bearer {address.api_key}"
    url = f"{address.url}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    # No proxy: the environment's proxy must not be used for the user's own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as answer:
        answer.read()


def _describe_exit(code: int) -> str:
    """Return the exit code or the signal of a process as text."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
