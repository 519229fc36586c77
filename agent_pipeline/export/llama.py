"""A GGUF file loaded by a real llama.cpp (xllamacpp), asked what serving it would ask: template,
tokens, greedy answers.

xllamacpp starts llama.cpp's own server inside this process, on a free port of the loopback
interface, behind a key that only this object knows. Its HTTP interface is the one documented with
llama.cpp (`tools/server/README.md`).
"""

import ctypes
import http.client
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from agent_pipeline.errors import ExportError
from agent_pipeline.sessions.session import Message, Tool


class Completion(msgspec.Struct):
    """Greedily chosen `tokens` without the end token; `stopped`: the model ended by itself, before
    the limit.
    """

    tokens: list[int]
    stopped: bool


def end_idle_threads() -> None:
    """Ends the OpenMP threads that this thread's last computation left idle; the next one starts
    them again.

    llama.cpp and PyTorch share a GNU OpenMP. While that has more threads than there are cores,
    those that work go to sleep at each barrier, too: 32 ms a token in place of 13 (SmolLM2-135M,
    q8_0, two cores).
    """
    for library in threadpool_info():
        if library["user_api"] == "openmp" and (
            pause := getattr(ctypes.CDLL(library["filepath"]), "omp_pause_resource_all", None)
        ):
            pause(1)  # omp_pause_soft of OpenMP 5.0; older libraries don't have it


def threads_given() -> int:
    """As many threads as torch is given by OMP_NUM_THREADS, else two: on shared cores more are
    slower.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and int(threads) else 2


@contextmanager
def two_servers(gguf: Path, **options: Any) -> "Iterator[list[LlamaCpp]]":
    """Two servers of a file, each with half of the threads that one would have; one, where there is
    one thread. `options` are those of `LlamaCpp`.

    A token waits for memory and for the other thread: two servers of one thread each write 1.5
    times as many tokens a second as one of two threads (SmolLM2-135M, q8_0, two cores). One server
    that answers two conversations at once is no faster, and what it writes depends on which of them
    are computed together. Both read the weights from the same pages of the file; of types that
    llama.cpp rearranges in memory, each has a copy.

    Raises:
        ExportError: as `LlamaCpp`.
    """
    threads = threads_given()
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
    """The greedy answer to each prompt, in their order, by servers of one file. Prompts that begin
    alike follow each other at a server, which reads what they share once.
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


class LlamaCpp:
    """One GGUF in memory, with the adapter `lora` over it if there is one; a context manager, since
    it is hundreds of megabytes.

    `n_ctx`: context in tokens (prompt and answer), allocated at once, so give what is needed.
    `threads`: by default `threads_given()`. `chat_template` is the one given, else the GGUF's own
    (llama.cpp's ChatML where the file has none); `context_length` is the longest context that the
    model was made for.

    Raises:
        ExportError: the file can't be loaded, or a request is refused.
    """

    def __init__(
        self,
        gguf: Path,
        n_ctx: int = 2048,
        threads: int | None = None,
        lora: Path | None = None,
        chat_template: str = "",
    ):
        self.path = gguf
        self._key = secrets.token_hex(16)
        threads = threads or threads_given()
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
        # Up to 8 GB of earlier conversations by default; llama.cpp's issue 27148 says that one was
        # answered with another's words.
        params.cache_ram_mib = 0
        params.port, params.api_keys, params.ui = 0, [self._key], False
        # A trailing assistant message is a message, not a beginning to be continued: as
        # transformers sees it.
        params.prefill_assistant = False
        params.warmup, params.fit_params, params.verbosity, params.offline = False, False, -1, True
        end_idle_threads()
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ExportError(
                f"llama.cpp can't load {gguf}: the file is missing, cut off, damaged or of a kind "
                f"that it does not know, or its chat "
                "template does not run there; export it again."
            ) from error
        self._host, self._port = self._server.listening_address.removeprefix("http://").rsplit(
            ":", 1
        )
        # Closing a server whose task loop has not begun yet never returns (xllamacpp 2026.10: the
        # loop's start undoes the stop). One token through the loop shows that it runs; templates
        # and tokens are answered beside it.
        self.greedy([0], 1)
        self.chat_template: str = self._ask("GET", "/props")["chat_template"]
        self.context_length: int = self._ask("GET", "/v1/models")["data"][0]["meta"]["n_ctx_train"]

    @property
    def endpoint(self) -> tuple[str, str]:
        """The URL of the OpenAI-compatible interface, and the key that it asks for."""
        return f"http://{self._host}:{self._port}/v1", self._key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the server and gives the memory back; a second call does nothing."""
        self._server = None

    def tokenize(
        self, text: str | list[int | str], add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a rendered text (or of texts between ids), its special tokens recognised
        unless `parse_special` is off; `add_special` adds what llama.cpp adds by itself (BOS).
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
        """The conversation as the GGUF's own chat template writes it."""
        body: dict[str, object] = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "parallel_tool_calls": True,
        }
        if tools:
            body["tools"] = tools
        return str(self._ask("POST", "/apply-template", body)["prompt"])

    def chat(self, messages: list[Message], tools: list[Tool], max_new_tokens: int) -> Message:
        """The greedy answer as an agent gets it, from the OpenAI-compatible interface: `content`,
        and `tool_calls` where it calls.
        """
        return self.chat_and_text(messages, tools, max_new_tokens)[0]

    def chat_and_text(
        self, messages: list[Message], tools: list[Tool], max_new_tokens: int
    ) -> tuple[Message, str]:
        """Return the greedy answer as an agent gets it, and the text that the model wrote, from
        which the server read that answer.
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
        """The answer to a prompt of token ids, always the likeliest token. What the prompt before
        began with too is not read again.
        """
        # No samplers but temperature 0: the likeliest token, with nothing in front that could
        # remove it.
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
                f"A prompt of {len(prompt)} tokens with an answer of {max_new_tokens} does not fit "
                f"the context given to {self.path}: check "
                "with shorter prompts or fewer new tokens."
            )
        stopped = answer["stop_type"] == "eos"
        # Where the model ended by itself, the end token is the last of the tokens.
        return Completion(
            tokens=answer["tokens"][:-1] if stopped else answer["tokens"], stopped=stopped
        )

    def _ask(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        # http.client and not urllib: a proxy set in the environment has no business with the
        # loopback interface.
        connection = http.client.HTTPConnection(self._host, int(self._port), timeout=600)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            status, raw = response.status, response.read()
        except OSError as error:
            raise ExportError(
                f"llama.cpp stopped answering while {self.path} was checked ({error}): run the "
                f"export again."
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
                f"llama.cpp refused {path} for {self.path} with '{reason}': check the chat "
                f"template and the prompts."
            )
        result: dict[str, object] = answer
        return result
