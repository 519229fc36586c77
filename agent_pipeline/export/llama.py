"""A GGUF file that is loaded by a real llama.cpp (xllamacpp), to check template, tokens and greedy
answers as they will be served.

xllamacpp starts llama.cpp's own server inside this process, on a free port of the loopback
interface, protected by a key that only this object has. Its HTTP interface is documented in
llama.cpp (`tools/server/README.md`).
"""

import ctypes
import http.client
import json
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from agent_pipeline.errors import ExportError
from agent_pipeline.models.threads import environment_limit, thread_limit, threads_for_load
from agent_pipeline.sessions.session import Message, Tool


class Completion(msgspec.Struct):
    """A greedy completion of a prompt.

    Attributes:
        tokens: The tokens without the end token.
        stopped: Whether the model ended the answer itself, before the limit.
    """

    tokens: list[int]
    stopped: bool


def end_idle_threads() -> None:
    """Stop the OpenMP threads that this thread's last computation left idle. The next computation
    starts them again.

    llama.cpp and PyTorch share a GNU OpenMP library. If the library has more threads than there are
    cores, the working threads also sleep at each barrier: a token takes 32 ms instead of 13 ms
    (SmolLM2-135M, q8_0, two cores).
    """
    for library in threadpool_info():
        if library["user_api"] == "openmp" and (
            pause := getattr(ctypes.CDLL(library["filepath"]), "omp_pause_resource_all", None)
        ):
            pause(1)  # omp_pause_soft of OpenMP 5.0; older libraries lack it


def default_threads() -> int:
    """Return the number of threads of llama.cpp: two, or the number in OMP_NUM_THREADS.

    More than two threads are slower on shared cores, so `OMP_NUM_THREADS` must request them. The
    number is at most the number of cores that this process may use, because threads that share a
    core wait for each other.
    """
    return thread_limit() if environment_limit() else min(2, thread_limit())


@contextmanager
def two_servers(gguf: Path, **options: Any) -> "Iterator[list[LlamaCpp]]":
    """Start two servers of a file, each with half of the threads. If only one thread is available,
    start one server. On a loaded machine, each server has fewer threads, down to one.

    A token waits for memory and for the other thread. So two servers with one thread each write 1.5
    times as many tokens per second as one server with two threads (SmolLM2-135M, q8_0, two cores).
    One server that answers two conversations at the same time is not faster, and its answers depend
    on which conversations are computed together. Both servers read the weights from the same pages
    of the file. If llama.cpp rearranges weights of a type in memory, each server has its own copy.

    Args:
        gguf: The file.
        options: Arguments of `LlamaCpp`.

    Raises:
        ExportError: As `LlamaCpp`.
    """
    threads = default_threads()
    if threads > 2:
        threads = max(2, min(threads, threads_for_load()))
    with ExitStack() as stack:
        shares = [threads - threads // 2, threads // 2]
        yield [
            stack.enter_context(LlamaCpp(gguf, threads=share, **options))
            for share in shares
            if share
        ]


def greedy_answers(
    servers: "Sequence[LlamaCpp]", prompts: Sequence[list[int]], max_new_tokens: int
) -> list[Completion]:
    """Return the greedy answer to each prompt, in the order of the prompts, from servers of the
    same file.

    Each server answers prompts with the same beginning one after the other, so that it reads the
    beginning once.

    Args:
        servers: The servers.
        prompts: The token ids of each prompt.
        max_new_tokens: The maximum number of tokens in an answer.
    """
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    parts = [part.tolist() for part in np.array_split(order, len(servers))]

    threads = [ThreadPoolExecutor(1) for _ in servers]
    try:
        request = {
            number: thread.submit(server.greedy, prompts[number], max_new_tokens)
            for thread, server, part in zip(threads, servers, parts, strict=True)
            for number in part
        }
        return [request[number].result() for number in range(len(prompts))]
    finally:
        for thread in threads:
            thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class ListenAt:
    """The address at which a server listens for clients.

    Attributes:
        host: The address of this machine, such as 127.0.0.1.
        port: The port.
        model: The name of the model in requests.
        api_key: The key that clients must send; empty for no key.
    """

    host: str
    port: int
    model: str
    api_key: str = ""

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"http://{self.host}:{self.port}"
        )


class LlamaCpp:
    """A GGUF file in memory, perhaps with an adapter. An instance is a context manager, because the
    file takes hundreds of megabytes.

    `chat_template` is the given template, or the GGUF's own template, or llama.cpp's ChatML if the
    file has no template. `context_length` is the longest context that the model supports.

    Args:
        gguf: The file.
        n_ctx: The context (prompt and answer) in tokens. It is allocated at once, so it should not
            be larger than needed.
        threads: The number of threads; by default `default_threads()`.
        lora: The GGUF of an adapter.
        chat_template: The chat template to use instead of the file's.
        listen_at: The address for clients; by default a free port of the loopback interface, with a
            key that only this object has.

    Raises:
        ExportError: The file cannot be loaded, or a request is refused.
    """

    def __init__(
        self,
        gguf: Path,
        n_ctx: int = 2048,
        threads: int | None = None,
        lora: Path | None = None,
        chat_template: str = "",
        listen_at: ListenAt | None = None,
    ):
        self.path = gguf
        self._key = listen_at.api_key if listen_at else secrets.token_hex(16)
        threads = threads or default_threads()
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        if lora:
            over = xllamacpp.CommonAdapterLoraInfo()
            over.path, over.scale = str(lora), 1.0
            params.lora_adapters = [over]
        if chat_template:
            params.chat_template = chat_template
        params.n_ctx, params.n_parallel = n_ctx, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_threads_http = 2
        # By default, up to 8 GB of earlier conversations are cached. According to llama.cpp's issue
        # 27148, a conversation was answered with the words of another conversation.
        params.cache_ram_mib = 0
        params.port, params.api_keys, params.ui = 0, [self._key], False
        if listen_at:
            params.hostnames, params.port = [listen_at.host], listen_at.port
            params.api_keys = [self._key] if self._key else []
            params.model_alias, params.ui = {listen_at.model}, True
        # Treat a trailing assistant message as a complete message, not as a beginning to continue,
        # as transformers does.
        params.prefill_assistant = False
        params.warmup, params.fit_params, params.verbosity, params.offline = False, False, -1, True
        end_idle_threads()
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ExportError(
                f"llama.cpp cannot load {gguf}, because the file is missing, damaged or of an "
                "unknown kind, or because its chat template does not run: export the model again."
            ) from error
        self._host, self._port = self._server.listening_address.removeprefix("http://").rsplit(
            ":", 1
        )
        # If a server is closed before its task loop has begun, closing never returns (xllamacpp
        # 2026.10: the start of the loop undoes the stop). One generated token shows that the loop
        # runs. Requests for templates and tokens do not use the loop.
        self.greedy([0], 1)
        self.chat_template: str = self._ask("GET", "/props")["chat_template"]
        self.context_length: int = self._ask("GET", "/v1/models")["data"][0]["meta"]["n_ctx_train"]

    @property
    def endpoint(self) -> tuple[str, str]:
        """Return the URL of the OpenAI-compatible interface, and its key."""
        return f"http://{self._host}:{self._port}/v1", self._key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and free the memory. A second call does nothing."""
        self._server = None

    def tokenize(
        self, text: str | list[int | str], add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of a rendered text, or of texts between token ids.

        Args:
            text: The text, or a list of token ids and texts.
            add_special: Whether to add the tokens that llama.cpp adds itself (BOS).
            parse_special: Whether special tokens in the text are recognized.
        """
        result: list[int] = self._ask(
            "POST",
            "/tokenize",
            {"content": text, "add_special": add_special, "parse_special": parse_special},
        )["tokens"]
        return result

    def render(
        self, messages: list[Message], tools: list[Tool], add_generation_prompt: bool = True
    ) -> str:
        """Return the conversation as the GGUF's own chat template renders it.

        Args:
            messages: The messages.
            tools: The tool schemas.
            add_generation_prompt: Whether the text ends with the opening of the assistant's next
                turn.
        """
        body: dict[str, object] = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "parallel_tool_calls": True,
        }
        if tools:
            body["tools"] = tools
        return str(self._ask("POST", "/apply-template", body)["prompt"])

    def chat(self, messages: list[Message], tools: list[Tool], max_new_tokens: int) -> Message:
        """Return the greedy answer of the OpenAI-compatible interface, with `content`, and with
        `tool_calls` if the model calls tools.
        """
        return self.chat_and_text(messages, tools, max_new_tokens)[0]

    def chat_and_text(
        self, messages: list[Message], tools: list[Tool], max_new_tokens: int
    ) -> tuple[Message, str]:
        """Return the greedy answer of the OpenAI-compatible interface, and the model's text from
        which the server parsed the answer.
        """
        body: dict[str, Any] = {
            "messages": messages,
            "temperature": 0,
            "samplers": ["temperature"],
            "max_tokens": max_new_tokens,
        }
        body |= {"parallel_tool_calls": True, "seed": 0, "logprobs": True, "top_logprobs": 1}
        choice = self._ask(
            "POST", "/v1/chat/completions", body | ({"tools": tools} if tools else {})
        )["choices"][0]
        pieces = (
            bytes(token["bytes"]) for token in (choice.get("logprobs") or {}).get("content") or ()
        )
        return choice["message"], b"".join(pieces).decode("utf-8", "replace")

    def greedy(self, prompt: list[int], max_new_tokens: int) -> Completion:
        """Return the greedy answer to a prompt of token ids. The common beginning with the previous
        prompt is not read again.
        """
        # Only the temperature sampler, with temperature 0. It chooses the likeliest token, and no
        # other sampler can remove this token.
        body = {
            "prompt": prompt,
            "n_predict": max_new_tokens,
            "temperature": 0,
            "samplers": ["temperature"],
            "return_tokens": True,
            "seed": 0,
        }
        answer = self._ask("POST", "/completion", body)
        if answer.get("truncated"):
            raise ExportError(
                f"A prompt of {len(prompt)} tokens with an answer of {max_new_tokens} tokens is "
                f"longer than the context of {self.path}: use shorter prompts, or request fewer "
                "new tokens."
            )
        stopped = answer["stop_type"] == "eos"
        # If the model ended the answer itself, the last token is the end token.
        return Completion(
            tokens=answer["tokens"][:-1] if stopped else answer["tokens"], stopped=stopped
        )

    def _ask(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        # http.client instead of urllib, so that the environment's proxy is not used for the
        # loopback interface.
        connection = http.client.HTTPConnection(self._host, int(self._port), timeout=600)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            status, raw = response.status, response.read()
        except OSError as error:
            raise ExportError(
                f"llama.cpp stopped answering during the check of {self.path} ({error}): run the "
                "export again."
            ) from error
        finally:
            connection.close()
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = {"error": {"message": raw.decode("utf-8", "replace")[:200]}}
        if status != 200:
            reason = " ".join(str(answer.get("error", {}).get("message", answer)).split())[:300]
            raise ExportError(
                f"llama.cpp refused the request {path} for {self.path} with '{reason}': check the "
                "chat template and the prompts."
            )
        result: dict[str, object] = answer
        return result
