"""The replayed world: a world made from the recorded sessions of a task.

Look-ups are answered from the tape. A write is executed only if a recorded session made the same
write in the same state. The user is the recorded user, as long as the model's answer is equivalent
to a recorded one. Otherwise the episode ends undecided, because nobody knows how it goes on. No
verdict is forced.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from agent_pipeline.evaluation.answer_scoring import values
from agent_pipeline.evaluation.tape import (
    GOOD,
    Recording,
    State,
    Step,
    TaskTape,
    add_write,
    canonical_arguments,
    list_steps,
)
from agent_pipeline.evaluation.worlds import Unsettled
from agent_pipeline.models.tool_call_parsers import ParameterSchemas, list_parameter_schemas
from agent_pipeline.sessions.session import Tool, dump_canonical_json
from agent_pipeline.sessions.transcript import is_tool_error
from agent_pipeline.sessions.turn_class import classify_text

MOST_REPEATED = 3
"""Number of equal calls from which an episode counts as a loop, if no recorded session has one."""
MIN_GOOD_TO_SUSPECT = 2
"""Smallest number of good sessions with the same writes, from which another write is suspect."""
MIN_SHARE_OF_WORDS = 0.75
"""Smallest share of the words that all good wordings of a free text have in common, which another
wording must have.
"""

_WORD = re.compile(r"[^\W\d_]{2,}")
_STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "either",
        "enter",
        "exact",
        "for",
        "from",
        "full",
        "further",
        "give",
        "given",
        "had",
        "has",
        "have",
        "he",
        "her",
        "here",
        "hi",
        "hello",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "know",
        "let",
        "like",
        "me",
        "mean",
        "more",
        "my",
        "need",
        "no",
        "not",
        "of",
        "okay",
        "on",
        "one",
        "or",
        "our",
        "please",
        "provide",
        "same",
        "say",
        "see",
        "share",
        "she",
        "should",
        "so",
        "some",
        "sorry",
        "specify",
        "tell",
        "than",
        "thank",
        "thanks",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "under",
        "up",
        "us",
        "use",
        "want",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whose",
        "will",
        "with",
        "would",
        "yes",
        "you",
        "your",
        "check",
        "correct",
        "right",
        "confirm",
        "clarify",
        "help",
        "order's",
        "that's",
        "i'd",
        "i'll",
        "i'm",
    ]
)
_SENTENCE_END = re.compile(r"(?<=[.!?？؟])\s+|\n+")


@dataclass(frozen=True)
class _Turn:
    """An answer of the agent in a recorded session.

    Attributes:
        heard: The user's messages before it.
        state: The successful writes before it.
        text: The answer.
        reply: The user's next message; None if the session ends.
        session_id: The session.
        is_good: Whether the session is good.
    """

    heard: tuple[str, ...]
    state: State
    text: str
    reply: str | None
    session_id: str
    is_good: bool


@dataclass(frozen=True)
class _Ending:
    """How a recorded session ended.

    Attributes:
        session_id: The session.
        state: The successful writes.
        text: The last answer.
        is_good: Whether the session is good; None if nobody judged it.
        looked_up: By successful write, the look-ups before it.
        most_repeated: How often the most frequent call was made.
    """

    session_id: str
    state: State
    text: str
    is_good: bool | None
    looked_up: Mapping[str, frozenset[str]]
    most_repeated: int


@dataclass(frozen=True)
class _RecordedResult:
    """A recorded result of a call.

    Attributes:
        text: The result.
        failed: Whether it is an error.
        session_id: The session that recorded it.
        is_tied: Whether it holds only together with other results of the same session.
    """

    text: str
    failed: bool
    session_id: str
    is_tied: bool


@dataclass
class _FreeTexts:
    """The arguments of writes that are free texts, such as the subject of a message.

    The wording of an argument is free if it has several words, and if good sessions of the task
    make the same call with different wordings. The numbers and ids in it are not free.

    Attributes:
        wordings: By tool and argument, the wordings of the good sessions.
    """

    wordings: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @classmethod
    def find(cls, good_writes: Sequence[tuple[str, Step]]) -> "_FreeTexts":
        """Find the free texts among the writes of good sessions, each with its session id."""
        wordings: defaultdict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
        prose: defaultdict[str, set[str]] = defaultdict(set)
        for _, step in good_writes:
            for name, value in _object_of(step.arguments).items():
                if isinstance(value, str) and len(value.split()) > 1:
                    prose[step.tool].add(name)
        free = cls()
        for session_id, step in good_writes:
            arguments = _object_of(step.arguments)
            rest = {name: arguments[name] for name in arguments.keys() - prose[step.tool]}
            for name in arguments.keys() & prose[step.tool]:
                by_session = wordings[step.tool, dump_canonical_json(rest), name]
                by_session.setdefault(session_id, str(arguments[name]))
        for (tool, _, name), by_session in wordings.items():
            if len(set(by_session.values())) > 1:
                free.wordings.setdefault((tool, name), []).extend(by_session.values())
        return free

    def reduce(self, tool: str, arguments: str) -> str:
        """Return the arguments of a call without the wording of free texts."""
        reduced = {
            name: "…" if (tool, name) in self.wordings else value
            for name, value in _object_of(arguments).items()
        }
        return dump_canonical_json(reduced) if reduced else arguments

    def says_something_else(self, tool: str, arguments: str, known: set[str]) -> bool:
        """Return whether a free text differs in more than its wording from the good sessions.

        It must have most of the words that all their wordings have in common, and no number or id
        that neither they nor the user stated.

        Args:
            tool: The tool.
            arguments: The canonical arguments.
            known: The numbers and ids that the user stated.
        """
        for name, value in _object_of(arguments).items():
            wordings = self.wordings.get((tool, name))
            if wordings is None:
                continue
            if values([str(value)]) - values(wordings) - known:
                return True
            common = set.intersection(*map(_content_words, wordings))
            if len(common & _content_words(str(value))) < MIN_SHARE_OF_WORDS * len(common):
                return True
        return False


def _content_words(text: str) -> set[str]:
    """Return the words of a text that carry its content."""
    return set(_WORD.findall(text.casefold())) - _STOP_WORDS


def _object_of(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; empty if they are none."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass
class _Tape:
    """The recordings of a task, arranged for looking up.

    Attributes:
        free: The arguments of writes that are free texts.
        results: The recorded results by tool, canonical arguments and writes before the call.
        turns: The recorded answers of the agent.
        endings: How the sessions ended.
    """

    free: _FreeTexts
    results: defaultdict[tuple[str, str, State], list[_RecordedResult]]
    turns: list[_Turn]
    endings: list[_Ending]

    @classmethod
    def arrange(cls, tape: TaskTape, schemas: ParameterSchemas) -> "_Tape":
        """Arrange the recordings of a task.

        Args:
            tape: The recordings.
            schemas: The parameter schemas by tool.
        """
        steps = [list_steps(recording.messages, schemas) for recording in tape.recordings]
        good_writes = [
            (recording.session_id, step)
            for recording, of_session in zip(tape.recordings, steps, strict=True)
            for step in of_session
            if recording.verdict == GOOD and add_write((), step, tape.reads)
        ]
        arranged = cls(_FreeTexts.find(good_writes), defaultdict(list), [], [])
        for recording, of_session in zip(tape.recordings, steps, strict=True):
            reduced = [
                replace(step, arguments=arranged.free.reduce(step.tool, step.arguments))
                if step.kind == "call"
                else step
                for step in of_session
            ]
            arranged._add(recording, reduced, tape.reads)
        return arranged

    def _add(self, recording: Recording, steps: Sequence[Step], reads: Sequence[str]) -> None:
        """Add the steps of a recording."""
        state: State = ()
        heard: tuple[str, ...] = ()
        calls: Counter[str] = Counter()
        looked_up: dict[str, frozenset[str]] = {}
        is_good = None if recording.verdict is None else recording.verdict == GOOD
        last_answer = ""
        for index, step in enumerate(steps):
            following = steps[index + 1] if index + 1 < len(steps) else None
            if step.kind == "user":
                heard = (*heard, step.text)
            elif step.kind == "answer":
                last_answer = step.text if following is None else ""
                if following is None or following.kind == "user":
                    reply = following.text if following else None
                    self.turns.append(
                        _Turn(heard, state, step.text, reply, recording.session_id, bool(is_good))
                    )
            else:
                is_tied = calls.total() in recording.tied_calls
                self.results[step.tool, step.arguments, state].append(
                    _RecordedResult(step.text, step.failed, recording.session_id, is_tied)
                )
                after = add_write(state, step, reads)
                if after != state:
                    looked_up.setdefault(
                        step.call, frozenset(call for call in calls if _tool_of(call) in reads)
                    )
                state = after
                calls[step.call] += 1
        self.endings.append(
            _Ending(
                recording.session_id,
                state,
                last_answer,
                is_good,
                looked_up,
                max(calls.values(), default=0),
            )
        )

    @cached_property
    def good(self) -> list[_Ending]:
        """Return the endings of the good sessions."""
        return [ending for ending in self.endings if ending.is_good]


def _tool_of(call: str) -> str:
    """Return the tool of a call that is written as text."""
    return call.partition("(")[0]


@dataclass
class _Progress:
    """What happened in an episode so far.

    Attributes:
        state: The successful writes.
        heard: The user's messages.
        calls: The number of times that each call was made.
        looked_up: By successful write, the look-ups before it.
        answer: The last answer.
        tied_to: The session whose pseudonyms the episode uses; None if it uses none.
        sources: The session that each result and each reply of the user comes from, in order.
    """

    state: State = ()
    heard: tuple[str, ...] = ()
    calls: Counter[str] = field(default_factory=Counter)
    looked_up: dict[str, frozenset[str]] = field(default_factory=dict)
    answer: str = ""
    tied_to: str | None = None
    sources: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Verdict:
    """The verdict on an episode that the tape settles.

    Attributes:
        done: Whether the task is done.
        complaint: Why it is not done.
    """

    done: bool
    complaint: str = ""


class ReplayedWorld:
    """A world that answers from the recorded sessions of a task.

    Its tools are those of the row. `unsettled` says why an episode cannot go on.
    """

    system: str | None = None
    tools: Sequence[Tool] | None = None

    def reset(
        self,
        tape: object = None,
        tools: Sequence[Tool] = (),
        messages: Sequence[Mapping[str, Any]] = (),
        **row: object,
    ) -> None:
        """Begin a task.

        Args:
            tape: The tape of the task (`tape.TaskTape`), also as JSON.
            tools: The tools of the row.
            messages: The messages of the row, whose first user message begins the episode.
            row: Other columns of a dataset's row, which are ignored.
        """
        self._task_tape = msgspec.convert(tape or {"recordings": [], "reads": []}, TaskTape)
        self._schemas = list_parameter_schemas(tools)
        self._tape = _Tape.arrange(self._task_tape, self._schemas)
        self._progress = _Progress()
        first = next((m["content"] for m in messages if m["role"] == "user"), None)
        if first is not None:
            self._progress.heard = (first,)
        self._unsettled: Unsettled | None = None
        self._verdict: _Verdict | None = None
        self.user = self

    # The conversation

    def run_call(self, name: str, arguments: object) -> str:
        """Return the recorded result of a call, or end the episode if there is none."""
        progress, reads = self._progress, self._task_tape.reads
        exact = canonical_arguments(name, arguments, self._schemas)
        text = self._tape.free.reduce(name, exact)
        result = self._find_result(name, text)
        known = values(list(progress.heard))
        if result is None or self._tape.free.says_something_else(name, exact, known):
            if not self._unsettled:
                self._unsettled = self._explain_missing(name, f"{name}({text})")
            return '{"error":"not recorded"}'
        step = Step("call", result.text, name, text, result.failed)
        after = add_write(progress.state, step, reads)
        if after != progress.state:
            looked_up = frozenset(call for call in progress.calls if _tool_of(call) in reads)
            progress.looked_up.setdefault(step.call, looked_up)
        progress.state = after
        progress.calls[step.call] += 1
        progress.sources.append(result.session_id)
        if result.is_tied:
            progress.tied_to = result.session_id
        return result.text

    def _find_result(self, name: str, arguments: str) -> _RecordedResult | None:
        """Return the recorded result of a call in the present state, or None.

        The most frequent result is returned; among equal counts, that of the first session.
        """
        progress = self._progress
        recorded = [
            result
            for result in self._tape.results.get((name, arguments, progress.state), ())
            if not result.is_tied or progress.tied_to in (None, result.session_id)
        ]
        if recorded:
            texts = Counter(result.text for result in recorded)
            return max(recorded, key=lambda result: texts[result.text])
        if progress.state or name not in self._task_tape.reads:
            return None
        for read in self._task_tape.shared_reads:
            if (read.tool, read.arguments) == (name, arguments):
                return _RecordedResult(
                    read.result, is_tool_error(read.result), read.session_id, False
                )
        return None

    def _explain_missing(self, name: str, call: str) -> Unsettled:
        """Return why a call without a recorded result ends the episode."""
        if name in self._task_tape.reads:
            return Unsettled("look-up not recorded", call)
        if name not in self._schemas:
            return Unsettled("unknown tool", call)
        return Unsettled("write not recorded", call, self._is_suspect(call))

    def _is_suspect(self, call: str) -> bool:
        """Return whether a write that is not recorded in this state is probably harmful.

        It is if no good session writes, or if all good sessions make the same writes and this
        write is none of them.
        """
        good_states = {ending.state for ending in self._tape.good}
        if len(good_states) != 1:
            return False
        (writes,) = good_states
        return not writes or (len(self._tape.good) >= MIN_GOOD_TO_SUSPECT and call not in writes)

    def reply(self, answer: str) -> str | None:
        """Return the recorded user's reply to an equivalent answer.

        Return None if the recorded sessions end here, or if nobody knows the reply.
        """
        progress = self._progress
        progress.answer = answer
        here = [turn for turn in self._tape.turns if turn.heard == progress.heard]
        going_on = [turn for turn in here if turn.reply is not None]
        equivalent = [
            turn
            for turn in going_on
            if turn.state == progress.state and are_equivalent(answer, turn.text)
        ]
        if equivalent:
            replies = Counter(turn.reply for turn in equivalent)
            chosen = max(equivalent, key=lambda turn: replies[turn.reply])
            assert chosen.reply is not None
            progress.heard = (*progress.heard, chosen.reply)
            progress.sources.append(chosen.session_id)
            return chosen.reply
        if going_on and not self._ends_here(here, answer):
            self._unsettled = Unsettled("answer without a recorded reply", answer)
        return None

    def _ends_here(self, here: Sequence[_Turn], answer: str) -> bool:
        """Return whether a recorded session ends after an equivalent answer."""
        return any(
            turn.reply is None
            and turn.state == self._progress.state
            and are_equivalent(answer, turn.text)
            for turn in here
        )

    # The outcome

    @property
    def unsettled(self) -> Unsettled | None:
        """Return why the tape does not settle the episode, or None if it does so far."""
        return self._unsettled

    @property
    def sources(self) -> list[str]:
        """Return the session that each result and each reply of the user comes from."""
        return self._progress.sources

    @property
    def reads(self) -> frozenset[str]:
        """Return the names of the tools that change nothing."""
        return frozenset(self._task_tape.reads)

    @property
    def must_act(self) -> bool | None:
        """Return whether the good sessions write; None if only some of them do."""
        acting = {bool(ending.state) for ending in self._tape.good}
        return acting.pop() if len(acting) == 1 else None

    @property
    def wrong_changes(self) -> list[str] | None:
        """Return the writes that no good session made; None if harm cannot be known.

        Such a write was recorded in a session that is not good.
        """
        good = self._tape.good
        extra: list[str] | None = None
        for ending in good:
            beyond = list((Counter(self._progress.state) - Counter(ending.state)).elements())
            if extra is None or len(beyond) < len(extra):
                extra = beyond
        if extra:
            return extra
        if not good or (self._unsettled and not self._unsettled.harm_suspected):
            return None
        return []

    def get_reward(self) -> float:
        """Return 1.0 if the tape settles that the task is done, otherwise 0.0."""
        return 1.0 if self._judged().done else 0.0

    @property
    def complaint(self) -> str | None:
        """Return why the task is not done, or why nobody knows."""
        verdict = self._judged()
        if self._unsettled:
            return f"undecided: {self._unsettled.kind} ({self._unsettled.text})"
        return verdict.complaint or None

    def _judged(self) -> _Verdict:
        """Return the verdict, after the episode has ended. It is found once."""
        if self._verdict is None:
            self._verdict = self._judge()
        return self._verdict

    def _judge(self) -> _Verdict:
        """Compare the episode with the recorded sessions."""
        if self._unsettled:
            return _Verdict(False)
        progress = self._progress
        good = self._tape.good
        if not good:
            return self._leave_open("no good recording", "")
        alike = [ending for ending in good if ending.state == progress.state]
        answer_class = classify_text(progress.answer)
        if not alike:
            recorded = {classify_text(ending.text) for ending in self._tape.endings}
            may_be_answered = answer_class == "ask" and "ask" not in recorded
            if may_be_answered and self._task_tape.user_replies:
                return self._leave_open("question that no session asks", progress.answer)
            return _Verdict(False, "no good session ends with these writes")
        if max(progress.calls.values(), default=0) >= max(
            MOST_REPEATED, *(ending.most_repeated + 1 for ending in good)
        ):
            return self._leave_open("repeated call", progress.calls.most_common(1)[0][0])
        for write, looked_up in progress.looked_up.items():
            before = [ending.looked_up.get(write, frozenset()) for ending in alike]
            if before and all(before) and not any(looked_up & reads for reads in before):
                return self._leave_open("write without its look-up", write)
        if not progress.answer.strip():
            return self._leave_open("no last answer", "")
        if not _agrees(progress.answer, [ending.text for ending in alike], bool(progress.state)):
            return self._leave_open("other last answer", progress.answer)
        for ending in self._tape.endings:
            is_bad = ending.is_good is False and ending.state == progress.state
            if is_bad and _agrees(progress.answer, [ending.text], bool(progress.state)):
                return self._leave_open("like a bad session, too", progress.answer)
        return _Verdict(True)

    def _leave_open(self, kind: str, text: str) -> _Verdict:
        """Record why the tape cannot settle the episode."""
        self._unsettled = Unsettled(kind, text)
        return _Verdict(False)


# Equivalence of answers


def are_equivalent(answer: str, recorded: str) -> bool:
    """Return whether a user would reply to an answer as to a recorded one.

    Both have the same class. Questions ask for the same things, and other answers state the same
    numbers and ids.
    """
    turn_class = classify_text(answer)
    if turn_class != classify_text(recorded):
        return False
    if turn_class == "ask":
        return asked_for(answer) == asked_for(recorded)
    return values([answer]) == values([recorded])


def asked_for(answer: str) -> frozenset[str]:
    """Return the words that say what a question asks for, and its numbers and ids.

    Example:
        >>> sorted(asked_for("Sure! Could you tell me your order id or your name?"))
        ['id', 'name', 'order']
    """
    sentences = [part for part in _SENTENCE_END.split(answer) if part.strip()]
    questions = [part for part in sentences if classify_text(part) == "ask"] or sentences
    text = " ".join(questions).casefold()
    words = {word for word in _WORD.findall(text) if word not in _STOP_WORDS}
    return frozenset(words | values([text]))


def _agrees(answer: str, good_answers: Sequence[str], has_written: bool) -> bool:
    """Return whether a last answer says what the good sessions say.

    It has the class of a good answer. If nothing was written, the answer is the whole result: it
    must have all numbers and ids that the good answers have in common, and no others.

    Args:
        answer: The last answer.
        good_answers: The last answers of the good sessions with the same writes.
        has_written: Whether the episode changed the world.
    """
    answer_class = classify_text(answer)
    same_class = [text for text in good_answers if classify_text(text) == answer_class]
    if not same_class:
        return False
    stated = values([answer])
    good_values = [values([text]) for text in same_class]
    common = set.intersection(*good_values)
    if has_written:
        return len(good_values) < 2 or common <= stated
    if not common and answer_class == "answer":
        return False
    return common <= stated <= set.union(*good_values)
