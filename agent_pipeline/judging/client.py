"""Questions to a language model behind an OpenAI-compatible endpoint: asked once, paid for once, never beyond the limit.

The official client retries with backoff and honours `Retry-After`. An answer is cached as soon as it comes, by the sha256 of question,
model and parameters: a run that is killed pays for nothing twice.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.session import hash_json

if TYPE_CHECKING:
    import openai

_VERSION = 1
_FORMATS = ("json_schema", "json_object", "text")
FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how. `parameters` go into every request as they are; prices are US dollars a million tokens.

    `seconds` is the time an answer may take, `retries` how often a request that failed for a passing reason is made again.
    """

    url: str
    model: str
    api_key: str = ""
    parameters: dict[str, Any] = field(
        default_factory=lambda: {"temperature": 0, "max_tokens": 512}
    )
    input_price: float = 0.0
    output_price: float = 0.0
    concurrency: int = 4
    retries: int = 4
    seconds: float = 120.0

    def connect(self, called: str) -> "openai.OpenAI":
        """A client for it, which retries with backoff; `called` names the endpoint in an error.

        Raises:
            SettingsError: the URL is not one.
        """
        import openai

        host = urlsplit(self.url).hostname
        if not host:
            raise SettingsError(f"{called} {self.url!r} is not a URL: write it as https://host/v1.")
        logging.getLogger("httpx2").setLevel(
            logging.WARNING
        )  # a line a request would bury the run's own
        return openai.OpenAI(
            base_url=self.url,
            api_key=self.api_key or "none",
            timeout=self.seconds,
            max_retries=self.retries,
            # A proxy set in the environment has no business with the loopback interface.
            http_client=openai.DefaultHttpxClient(
                trust_env=host not in ("localhost", "127.0.0.1", "::1")
            ),
        )


@dataclass(frozen=True)
class Limits:
    """What one run may spend, or all runs of a night together; 0 is no limit."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0

    def allow(self, requests: int, tokens: int, usd: float) -> bool:
        """Whether so much may have been spent."""
        spent = ((self.requests, requests), (self.tokens, tokens), (self.usd, usd))
        return not any(limit and each > limit for limit, each in spent)


@dataclass(frozen=True)
class Night:
    """The night that a run belongs to, and what all its runs together may spend."""

    name: str
    limits: Limits


class Answer(NamedTuple):
    """`text` is `None` where there is none; `problem` then says why, in words that group well.

    `pending`: the problem may be gone in another run (a limit, an outage), so the question stays open.
    """

    text: str | None
    problem: str = ""
    pending: bool = False


UNPARSABLE, REFUSED = "the answer could not be parsed", "the endpoint refused the request"


class Spend:
    """What was spent, and whether one question more may be asked: only if its estimate fits what is left of the run's limits, and of the
    night's, of which the cache of answers keeps account for all runs."""

    def __init__(
        self, endpoint: Endpoint, limits: Limits, cache: "AnswerCache", night: Night | None = None
    ) -> None:
        self.requests = self.input_tokens = self.output_tokens = 0
        self._endpoint, self._limits, self._cache, self._night = endpoint, limits, cache, night
        self._lock = threading.Lock()

    @property
    def usd(self) -> float:
        """Dollars so far, by the prices given; 0 where none were."""
        return self._price(self.input_tokens, self.output_tokens)

    def _price(self, tokens_in: int, tokens_out: int) -> float:
        return (
            tokens_in * self._endpoint.input_price + tokens_out * self._endpoint.output_price
        ) / 1_000_000

    def reserve(self, tokens_in: int, tokens_out: int) -> bool:
        """Spend a request of so many tokens in advance; false if a limit does not allow it."""
        with self._lock:
            of_night = self._add(1, tokens_in, tokens_out)
            allowed = self._limits.allow(
                self.requests, self.input_tokens + self.output_tokens, self.usd
            )
            if not (allowed and (self._night is None or self._night.limits.allow(*of_night))):
                self._add(-1, -tokens_in, -tokens_out)
                return False
            return True

    def correct(self, tokens_in: int, tokens_out: int) -> None:
        """Add what a request used beyond its estimate (less than nothing, mostly)."""
        with self._lock:
            self._add(0, tokens_in, tokens_out)

    def _add(self, requests: int, tokens_in: int, tokens_out: int) -> tuple[int, int, float]:
        """Add to what was spent; what the night has spent with it: requests, tokens, dollars."""
        self.requests += requests
        self.input_tokens += tokens_in
        self.output_tokens += tokens_out
        if self._night is None:
            return 0, 0, 0.0
        return self._cache.spend(
            self._night.name, requests, tokens_in + tokens_out, self._price(tokens_in, tokens_out)
        )


class AnswerCache:
    """Answers by question, in one SQLite file that several runs may share."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._path = path
        with self._usable():
            self._connection = sqlite3.connect(
                path, timeout=30, check_same_thread=False, isolation_level=None
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, text TEXT NOT NULL, about TEXT)"
            )
            if "about" not in {
                row[1] for row in self._connection.execute("PRAGMA table_info(answers)")
            }:  # a file of an older version
                self._connection.execute("ALTER TABLE answers ADD COLUMN about TEXT")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS nights (night TEXT PRIMARY KEY, requests INT, tokens INT, usd REAL)"
            )

    def get(self, question: str) -> str | None:
        with self._usable():
            row = self._connection.execute(
                "SELECT text FROM answers WHERE question = ?", (question,)
            ).fetchone()
        return row[0] if row else None

    def put(self, question: str, text: str, about: str = "") -> None:
        """Keep an answer; `about` names the sessions that were asked about, so that it can be forgotten with one of them."""
        with self._usable():
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (question, text, about)
            )

    def spend(self, night: str, requests: int, tokens: int, usd: float) -> tuple[int, int, float]:
        """Add to what the runs of a night have spent; their sums with it."""
        with self._usable():
            result: tuple[int, int, float] = self._connection.execute(
                "INSERT INTO nights VALUES (?, ?, ?, ?) ON CONFLICT (night) DO UPDATE SET requests = requests + excluded.requests, "
                "tokens = tokens + excluded.tokens, usd = usd + excluded.usd RETURNING requests, tokens, usd",
                (night, requests, tokens, usd),
            ).fetchone()
            return result

    def forget(self, about: str) -> tuple[int, int]:
        """Remove the answers about a session, from the disk too; how many, and how many others do not say which session they are about."""
        with self._usable():
            self._connection.execute("PRAGMA secure_delete = ON")
            gone = self._connection.execute(
                "DELETE FROM answers WHERE instr(about, ?)", (about,)
            ).rowcount
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            unclear = self._connection.execute(
                "SELECT count(*) FROM answers WHERE about IS NULL OR about = ''"
            ).fetchone()[0]
        return gone, unclear

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """One thread at a time; raises SettingsError where the file is not a database, or cannot be written."""
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise SettingsError(
                f"The judge's cache {self._path} cannot be used ({error}): make room, remove it, or set cache to another folder."
            ) from error


class LlmClient:
    """Asks questions, several at a time in the threads of `pool`; a context manager.

    `counts` has `asked`, `cached`, and every problem by name. After five failures in a row nothing more is asked.
    """

    def __init__(
        self, endpoint: Endpoint, limits: Limits, cache: Path, night: Night | None = None
    ) -> None:
        if (limits.usd or (night and night.limits.usd)) and not (
            endpoint.input_price or endpoint.output_price
        ):
            raise SettingsError(
                "A limit in US dollars needs prices: set judge.input_price and judge.output_price (per million tokens)."
            )
        self._client = endpoint.connect("judge.endpoint")
        self._cache = AnswerCache(cache)
        self.endpoint, self.spend = endpoint, Spend(endpoint, limits, self._cache, night)
        self.counts: Counter[str] = Counter()
        self.pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="judge")
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._format = self._failures = 0
        self._answered = False
        self.refused: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self._client.close()
        self._cache.close()

    def ask(
        self, text: str, schema: dict[str, Any], parses: Callable[[str], bool], about: str = ""
    ) -> Answer:
        """The answer to a text, in the form of a JSON schema where the endpoint can be held to one; at once if it is known.

        Only an answer that `parses` is cached; any other one is counted, and asked for again by the next run. `about` names the sessions of
        which the text tells (`AnswerCache.put`).

        Raises:
            SettingsError: the endpoint cannot be reached, never answers, or refuses the key or the model.
        """
        question = hash_json(
            [_VERSION, self.endpoint.model, self.endpoint.parameters, schema, text]
        )
        with self._lock:
            earlier = self._asked.get(question)
            future = self._asked.setdefault(question, Future())
        if earlier is not None:  # on its way, or refused in this run: not to be paid for twice
            answer = earlier.result()
            self.count(answer.problem or "cached")
            return answer
        try:
            answer = self._answer(question, text, schema, parses, about)
        except BaseException as error:
            future.set_exception(error)
            raise
        future.set_result(answer)
        return answer

    def count(self, name: str) -> None:
        """Count what became of a question; answers come in from several threads."""
        with self._lock:
            self.counts[name] += 1

    def _answer(
        self,
        question: str,
        text: str,
        schema: dict[str, Any],
        parses: Callable[[str], bool],
        about: str,
    ) -> Answer:
        known = self._cache.get(question)
        if known is not None and parses(known):
            self.count("cached")
            return Answer(known)
        answer = self._request(text, schema)
        if answer.text is not None and not parses(answer.text):
            answer = Answer(None, UNPARSABLE, pending=True)
        if answer.text is not None:
            self._cache.put(question, answer.text, about)
        self.count(answer.problem or "asked")
        return answer

    def _request(self, text: str, schema: dict[str, Any]) -> Answer:
        import openai

        # Four characters a token is usual, three is careful; where the parameters do not say how long an answer may be, 512 is a guess.
        longest = self.endpoint.parameters.get(
            "max_completion_tokens", self.endpoint.parameters.get("max_tokens")
        )
        estimate = (
            len(text) // 3 + 1,
            longest if isinstance(longest, int) and longest > 0 else 512,
        )
        for index in range(self._format, len(_FORMATS)):
            if self._failures >= FAILURES_IN_A_ROW:
                return Answer(None, "the endpoint stopped answering", pending=True)
            if not self.spend.reserve(*estimate):
                return Answer(None, "the spend limit was reached", pending=True)
            used = (0, 0)
            try:
                done = self._client.chat.completions.create(
                    model=self.endpoint.model,
                    messages=[{"role": "user", "content": text}],
                    extra_body=self.endpoint.parameters | _response_format(_FORMATS[index], schema),
                )
                used = _usage(done) or estimate
                # A server that is none of these answers 200 with anything.
                content = done.choices[0].message.content if done.choices else None
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if index + 1 == len(_FORMATS):
                    self._note(True)
                    self.refused = error
                    return Answer(None, f"{REFUSED} ({error.status_code})")
                continue  # it may not know this way of asking for JSON
            except (
                openai.AuthenticationError,
                openai.PermissionDeniedError,
                openai.NotFoundError,
            ) as error:
                raise SettingsError(
                    f"The judge's endpoint {self.endpoint.url} refuses the model {self.endpoint.model!r} or the key "
                    f"(HTTP {error.status_code}): correct judge.endpoint, judge.model, or the variable that judge.api_key_variable names."
                ) from error
            except (openai.APIError, ValueError, AttributeError, TypeError) as error:
                return self._failed(error)
            finally:
                self.spend.correct(used[0] - estimate[0], used[1] - estimate[1])
            self._note(True)
            self._format = index
            return (
                Answer(content)
                if isinstance(content, str)
                else Answer(None, "the model gave no text", pending=True)
            )
        raise AssertionError("every format either answers or ends")

    def _failed(self, error: Exception) -> Answer:
        import openai

        self._note(False)
        # One session may be too much for a server that is well otherwise; a server that nobody can reach is another matter.
        unreachable = isinstance(error, openai.APIConnectionError) and not isinstance(
            error, openai.APITimeoutError
        )
        if not self._answered and (unreachable or self._failures >= FAILURES_IN_A_ROW):
            raise SettingsError(
                f"The judge's endpoint {self.endpoint.url} answers nothing ({type(error).__name__}: {str(error)[:200]}): start it, correct "
                "judge.endpoint, or take llm out of decided_by."
            ) from error
        return Answer(None, f"the request failed ({type(error).__name__})", pending=True)

    def _note(self, answered: bool) -> None:
        with self._lock:
            self._failures = 0 if answered else self._failures + 1
            self._answered |= answered


def _response_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if name == "json_schema":
        return {
            "response_format": {
                "type": name,
                "json_schema": {"name": "answer", "strict": True, "schema": schema},
            }
        }
    return {"response_format": {"type": name}} if name == "json_object" else {}


def _usage(done: Any) -> tuple[int, int] | None:
    """Tokens in and out, where the server says so."""
    used = (done.usage and done.usage.prompt_tokens, done.usage and done.usage.completion_tokens)
    return used if all(isinstance(each, int) for each in used) else None
