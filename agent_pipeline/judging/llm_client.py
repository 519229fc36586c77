"""A client for questions to a language model behind an OpenAI-compatible endpoint.

Each question is sent and paid for only once, and only within the spend limit. The official client
retries with backoff and honors `Retry-After`. An answer is cached as soon as it arrives, by the
sha256 of the question, the model and the parameters. If a run is killed, no question is paid for
twice. The content of the questions belongs to `llm_judge`.
"""

import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from agent_pipeline.errors import SettingsError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import hash_json

if TYPE_CHECKING:
    import openai

FAILURES_IN_A_ROW = 5
"""Number of consecutive failed requests after which no more questions are sent to the model."""

UNPARSABLE, REFUSED = "the answer could not be parsed", "the endpoint refused the request"

_QUESTION_VERSION = 1
_FORMATS = ("json_schema", "json_object", "text")
"""Ways to request JSON from the model, from the strictest to the least strict."""

_CHARACTERS_PER_TOKEN = 3  # four is usual; three is a cautious estimate
_USUAL_ANSWER_TOKENS = 512  # the estimate if the parameters do not limit the answer

Price = tuple[int, int, float]
"""Cost of questions: the numbers of requests and tokens, and the US dollars."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a language model, with the parameters of its requests.

    Attributes:
        url: The base URL, such as `https://host/v1`.
        model: The model's name at the endpoint.
        api_key: The key.
        parameters: Fields that are added to every request unchanged.
        input_price: US dollars per million input tokens.
        output_price: US dollars per million output tokens.
        concurrency: Maximum number of simultaneous requests.
        retries: Maximum number of retries after a temporary failure.
        seconds: Timeout of an answer in seconds.
    """

    url: str
    model: str
    api_key: str = ""
    parameters: JsonObject = field(default_factory=lambda: {"temperature": 0, "max_tokens": 512})
    input_price: float = 0.0
    output_price: float = 0.0
    concurrency: int = 4
    retries: int = 4
    seconds: float = 120.0

    def connect(self, setting: str) -> "openai.OpenAI":
        """Create a client for the endpoint. The client retries failed requests with backoff.

        Args:
            setting: The name of the endpoint's setting, for errors.

        Raises:
            SettingsError: The URL is not a URL.
        """
        import openai

        host = urlsplit(self.url).hostname
        if not host:
            raise SettingsError(
                f"{setting} {self.url!r} is not a URL: write it as https://host/v1."
            )
        # One log line per request would hide the log of the run itself.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        is_this_machine = host in ("localhost", "127.0.0.1", "::1")
        return openai.OpenAI(
            base_url=self.url,
            api_key=self.api_key or "none",
            timeout=self.seconds,
            max_retries=self.retries,
            # Requests to the loopback interface must not use a proxy from the environment.
            http_client=openai.DefaultHttpxClient(trust_env=not is_this_machine),
        )


@dataclass(frozen=True)
class SpendLimits:
    """Limits on the cost of one run, or of all runs of a night. 0 means no limit."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0

    def allow(self, requests: int, tokens: int, usd: float) -> bool:
        """Return whether the given total costs are within the limits."""
        if self.requests and requests > self.requests:
            return False
        if self.tokens and tokens > self.tokens:
            return False
        return not (self.usd and usd > self.usd)


@dataclass(frozen=True)
class NightlyLimits:
    """The night that a run belongs to, and the limits for all runs of that night."""

    name: str
    limits: SpendLimits


class LlmAnswer(NamedTuple):
    """An answer of the language model, or the problem that prevented an answer.

    Attributes:
        text: The answer, or `None`.
        problem: The reason why there is no answer, in a form that can be counted.
        pending: Whether another run may get an answer (after a limit or an outage), so that the
            question stays open.
    """

    text: str | None
    problem: str = ""
    pending: bool = False


class Spend:
    """The cost so far, which decides whether another question may be asked.

    A question may be asked if its estimate fits into the remaining limits of the run and of the
    night. The cache of answers keeps the totals of the night for all runs.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: SpendLimits,
        cache: "AnswerCache",
        night: NightlyLimits | None = None,
    ) -> None:
        self.requests = self.input_tokens = self.output_tokens = 0
        self._endpoint, self._limits, self._cache, self._night = endpoint, limits, cache, night
        self._lock = threading.Lock()

    @property
    def usd(self) -> float:
        """Return the US dollars spent so far, or 0 if the endpoint has no prices."""
        return self._compute_price(self.input_tokens, self.output_tokens)

    def _compute_price(self, input_tokens: int, output_tokens: int) -> float:
        input_price = input_tokens * self._endpoint.input_price
        output_price = output_tokens * self._endpoint.output_price
        return (input_price + output_price) / 1_000_000

    def reserve(self, input_tokens: int, output_tokens: int) -> bool:
        """Reserve the estimated cost of a request in the budget.

        Return False if that would exceed a limit.
        """
        with self._lock:
            nightly_spend = self._add(1, input_tokens, output_tokens)
            tokens = self.input_tokens + self.output_tokens
            is_allowed = self._limits.allow(self.requests, tokens, self.usd)
            if self._night is not None:
                is_allowed = is_allowed and self._night.limits.allow(*nightly_spend)
            if not is_allowed:
                self._add(-1, -input_tokens, -output_tokens)
            return is_allowed

    def correct(self, input_tokens: int, output_tokens: int) -> None:
        """Correct the cost of a request after the server has reported its real usage.

        The difference is usually negative.
        """
        with self._lock:
            self._add(0, input_tokens, output_tokens)

    def _add(self, requests: int, input_tokens: int, output_tokens: int) -> Price:
        """Add a cost to the total so far, and return the totals of the night."""
        self.requests += requests
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if self._night is None:
            return 0, 0, 0.0
        price = self._compute_price(input_tokens, output_tokens)
        return self._cache.add_spend(
            self._night.name, requests, input_tokens + output_tokens, price
        )


@dataclass(frozen=True)
class ForgottenAnswers:
    """The result of removing the answers about a session from the cache.

    Attributes:
        removed: Number of answers that were removed.
        unnamed: Number of answers that do not name the session that they are about.
    """

    removed: int
    unnamed: int


class AnswerCache:
    """A cache of answers by question, in an SQLite file that several runs may share."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._path = path
        with self._use_file():
            self._connection = sqlite3.connect(
                path, timeout=30, check_same_thread=False, isolation_level=None
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(question TEXT PRIMARY KEY, text TEXT NOT NULL, about TEXT)"
            )
            columns = [row[1] for row in self._connection.execute("PRAGMA table_info(answers)")]
            if "about" not in columns:  # the file was written by an older version
                self._connection.execute("ALTER TABLE answers ADD COLUMN about TEXT")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS nights "
                "(night TEXT PRIMARY KEY, requests INT, tokens INT, usd REAL)"
            )

    def get(self, question: str) -> str | None:
        """Return the cached answer to a question, or None."""
        with self._use_file():
            row = self._connection.execute(
                "SELECT text FROM answers WHERE question = ?", (question,)
            ).fetchone()
        return row[0] if row else None

    def put(self, question: str, text: str, about: str = "") -> None:
        """Store the answer to a question in the cache.

        Args:
            question: The question.
            text: The answer.
            about: The sessions that the question is about, so that the answer can be forgotten
                with one of them.
        """
        with self._use_file():
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (question, text, about)
            )

    def add_spend(self, night: str, requests: int, tokens: int, usd: float) -> Price:
        """Add a cost to the total of a night's runs, and return the new totals.

        Args:
            night: The night's name.
            requests: Requests to add.
            tokens: Tokens to add.
            usd: US dollars to add.
        """
        with self._use_file():
            totals = self._connection.execute(
                "INSERT INTO nights VALUES (?, ?, ?, ?) ON CONFLICT (night) DO UPDATE SET "
                "requests = requests + excluded.requests, tokens = tokens + excluded.tokens, "
                "usd = usd + excluded.usd RETURNING requests, tokens, usd",
                (night, requests, tokens, usd),
            ).fetchone()
        return cast(Price, totals)

    def forget(self, about: str) -> ForgottenAnswers:
        """Remove the answers about a session from the cache.

        The text of the answers is also erased from the disk.
        """
        with self._use_file():
            self._connection.execute("PRAGMA secure_delete = ON")
            removed = self._connection.execute(
                "DELETE FROM answers WHERE instr(about, ?)", (about,)
            ).rowcount
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            unnamed = self._connection.execute(
                "SELECT count(*) FROM answers WHERE about IS NULL OR about = ''"
            ).fetchone()[0]
        return ForgottenAnswers(removed, unnamed)

    def close(self) -> None:
        """Close the file of the cache."""
        self._connection.close()

    @contextmanager
    def _use_file(self) -> Iterator[None]:
        """Give access to the cache file to one thread at a time.

        Raises:
            SettingsError: The file is not a database, or cannot be written.
        """
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise SettingsError(
                f"The judge's cache {self._path} cannot be used ({error}): free some disk space, "
                "delete the cache, or set `judge.cache` to another folder."
            ) from error


class LlmClient:
    """A client that asks several questions at a time, in the threads of `pool`.

    The client is a context manager. After `FAILURES_IN_A_ROW` failures, no more questions are sent.

    Attributes:
        endpoint: The endpoint.
        spend: The amounts spent so far.
        counts: Number of questions that were `asked` or `cached`, and number of times of each
            problem.
        pool: The threads.
        refused: The last error with which the endpoint refused a request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: SpendLimits,
        cache: Path,
        night: NightlyLimits | None = None,
    ) -> None:
        has_usd_limit = bool(limits.usd or (night and night.limits.usd))
        if has_usd_limit and not (endpoint.input_price or endpoint.output_price):
            raise SettingsError(
                "A limit in US dollars is set, but the prices are not: set `judge.input_price` "
                "and `judge.output_price` (US dollars per million tokens)."
            )
        self._client = endpoint.connect("judge.endpoint")
        self._cache = AnswerCache(cache)
        self.endpoint = endpoint
        self.spend = Spend(endpoint, limits, self._cache, night)
        self.counts: Counter[str] = Counter()
        self.pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="judge")
        self.refused: Exception | None = None
        self._answers_by_question: dict[str, Future[LlmAnswer]] = {}
        self._lock = threading.Lock()
        self._format_index = 0
        self._failures = 0
        self._has_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self._client.close()
        self._cache.close()

    def ask(
        self, text: str, schema: JsonObject, parses: Callable[[str], bool], about: str = ""
    ) -> LlmAnswer:
        """Return the answer to a question. A cached answer is returned at once.

        Args:
            text: The question.
            schema: The JSON schema of the answer, for endpoints that can enforce one.
            parses: Returns whether an answer has the required form. Only such an answer is cached;
                any other answer is counted, and the next run asks again.
            about: The sessions that the question is about (`AnswerCache.put`).

        Raises:
            SettingsError: The endpoint cannot be reached, never answers, or refuses the key or the
                model.
        """
        question = hash_json(
            [_QUESTION_VERSION, self.endpoint.model, self.endpoint.parameters, schema, text]
        )
        with self._lock:
            earlier = self._answers_by_question.get(question)
            future = self._answers_by_question.setdefault(question, Future())
        # already sent, or refused in this run; the question must not be paid for twice
        if earlier is not None:
            answer = earlier.result()
            self.count(answer.problem or "cached")
            return answer
        try:
            answer = self._find_answer(question, text, schema, parses, about)
        except BaseException as error:
            future.set_exception(error)
            raise
        future.set_result(answer)
        return answer

    def count(self, name: str) -> None:
        """Increase the count of an outcome, such as a cached answer.

        A lock protects the counts, because answers arrive in several threads.
        """
        with self._lock:
            self.counts[name] += 1

    def _find_answer(
        self,
        question: str,
        text: str,
        schema: JsonObject,
        parses: Callable[[str], bool],
        about: str,
    ) -> LlmAnswer:
        """Find the answer to a question in the cache, or request it from the endpoint."""
        known = self._cache.get(question)
        if known is not None and parses(known):
            self.count("cached")
            return LlmAnswer(known)
        answer = self._request(text, schema)
        if answer.text is not None and not parses(answer.text):
            answer = LlmAnswer(None, UNPARSABLE, pending=True)
        if answer.text is not None:
            self._cache.put(question, answer.text, about)
        self.count(answer.problem or "asked")
        return answer

    def _estimate_tokens(self, text: str) -> tuple[int, int]:
        """Estimate the number of tokens of a question together with its answer."""
        parameters = self.endpoint.parameters
        limit = parameters.get("max_completion_tokens", parameters.get("max_tokens"))
        has_limit = isinstance(limit, int) and limit > 0
        answer_tokens = limit if has_limit else _USUAL_ANSWER_TOKENS
        return len(text) // _CHARACTERS_PER_TOKEN + 1, cast(int, answer_tokens)

    def _request(self, text: str, schema: JsonObject) -> LlmAnswer:
        """Send a question to the endpoint, and return the answer.

        JSON is requested in the strictest way that the endpoint accepts.
        """
        import openai

        estimate = self._estimate_tokens(text)
        for format_index in range(self._format_index, len(_FORMATS)):
            if self._failures >= FAILURES_IN_A_ROW:
                return LlmAnswer(None, "the endpoint stopped answering", pending=True)
            if not self.spend.reserve(*estimate):
                return LlmAnswer(None, "the spend limit was reached", pending=True)
            used_tokens = (0, 0)
            response_format = _make_response_format(_FORMATS[format_index], schema)
            try:
                completion = self._client.chat.completions.create(
                    model=self.endpoint.model,
                    messages=[{"role": "user", "content": text}],
                    extra_body=self.endpoint.parameters | response_format,
                )
                used_tokens = _read_usage(completion) or estimate
                # A server that is not an OpenAI-compatible endpoint may answer any request with
                # status 200.
                content = completion.choices[0].message.content if completion.choices else None
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if format_index + 1 == len(_FORMATS):
                    self._note_outcome(answered=True)
                    self.refused = error
                    return LlmAnswer(None, f"{REFUSED} ({error.status_code})")
                continue  # the endpoint may not support this way to request JSON
            except (
                openai.AuthenticationError,
                openai.PermissionDeniedError,
                openai.NotFoundError,
            ) as error:
                raise SettingsError(
                    f"The judge's endpoint {self.endpoint.url} refuses the model "
                    f"{self.endpoint.model!r} or the key (HTTP {error.status_code}): correct "
                    "`judge.endpoint`, `judge.model`, or the variable that "
                    "`judge.api_key_variable` names."
                ) from error
            except (openai.APIError, ValueError, AttributeError, TypeError) as error:
                return self._handle_failure(error)
            finally:
                self.spend.correct(used_tokens[0] - estimate[0], used_tokens[1] - estimate[1])
            self._note_outcome(answered=True)
            self._format_index = format_index
            if isinstance(content, str):
                return LlmAnswer(content)
            return LlmAnswer(None, "the model gave no text", pending=True)
        raise AssertionError("every format either answers or ends")

    def _handle_failure(self, error: Exception) -> LlmAnswer:
        """Return the answer that describes a failed request.

        Raises:
            SettingsError: The endpoint cannot be reached, or has never answered.
        """
        import openai

        self._note_outcome(answered=False)
        # One session may be too large for a server that works. If the server cannot be reached at
        # all, the settings are probably wrong.
        is_unreachable = isinstance(error, openai.APIConnectionError) and not isinstance(
            error, openai.APITimeoutError
        )
        may_be_wrong = is_unreachable or self._failures >= FAILURES_IN_A_ROW
        if may_be_wrong and not self._has_answered:
            raise SettingsError(
                f"The judge's endpoint {self.endpoint.url} does not answer "
                f"({type(error).__name__}: {str(error)[:200]}): start the endpoint, correct "
                "`judge.endpoint`, or remove llm from `decided_by`."
            ) from error
        return LlmAnswer(None, f"the request failed ({type(error).__name__})", pending=True)

    def _note_outcome(self, answered: bool) -> None:
        with self._lock:
            self._failures = 0 if answered else self._failures + 1
            self._has_answered |= answered


def _make_response_format(name: str, schema: JsonObject) -> JsonObject:
    """Return the request fields that ask for JSON in one of the `_FORMATS`."""
    if name == "json_schema":
        json_schema = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": name, "json_schema": json_schema}}
    return {"response_format": {"type": name}} if name == "json_object" else {}


def _read_usage(completion: Any) -> tuple[int, int] | None:
    """Return the numbers of input and output tokens that the server reports, or None."""
    usage = completion.usage
    if not usage:
        return None
    input_tokens, output_tokens = usage.prompt_tokens, usage.completion_tokens
    if isinstance(input_tokens, int) and isinstance(output_tokens, int):
        return input_tokens, output_tokens
    return None
