"""Redaction: secrets and personal data are replaced by pseudonyms before a session is written.

A pseudonym such as `<EMAIL_1>` or `<API_KEY_2>` has the kind of the private value and a number.
Values are numbered in the order in which they first appear in the tools and then in the messages.
Within a session, a value always gets the same pseudonym, regardless of case and separators. So the
address in a call's arguments still matches the address in its result. A JSON text stays valid JSON
with the same layout; a private number in it becomes a string. Existing pseudonyms are left alone.

Redaction fails closed. If a detector cannot be loaded or raises an exception, a `RedactionError` is
raised and the session is not handed on.

The detectors are in `detectors`, the search for all forms of a value in `search`, and the
pseudonyms in `pseudonyms`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent_pipeline.errors import RedactionError, SettingsError
from agent_pipeline.redaction.detectors import RULE_KINDS, Detectors
from agent_pipeline.redaction.encoded import decoded_windows
from agent_pipeline.redaction.forms import identity
from agent_pipeline.redaction.kinds import KINDS, OPT_IN
from agent_pipeline.redaction.pseudonyms import Pseudonyms
from agent_pipeline.redaction.search import Search
from agent_pipeline.redaction.texts import rewrite, seen_by_detectors, texts_of, unescaped_text
from agent_pipeline.redaction.trials import Known
from agent_pipeline.redaction.values import Values
from agent_pipeline.sessions.session import Message, Session, hash_json

DEFAULT_TYPES = tuple(kind for kind in KINDS if kind not in OPT_IN)


@dataclass(frozen=True)
class RedactionOptions:
    """Options that define which private values are redacted.

    Attributes:
        enabled: Whether anything is redacted.
        allow: Values that are not redacted. A text between slashes is a regular expression that
            must match a whole value. Any other text is one value, regardless of case and
            separators.
        types: The kinds of `KINDS` that are redacted.
        phone_regions: Countries (ISO 3166 codes such as `US`) whose telephone numbers are
            recognized even if the number has no `+`.
        ner_model: The name of an installed spaCy pipeline. The pipeline finds `PERSON` and
            `LOCATION` if `types` contains them.
    """

    enabled: bool = True
    allow: tuple[str, ...] = ()
    types: tuple[str, ...] = DEFAULT_TYPES
    phone_regions: tuple[str, ...] = ("US",)
    ner_model: str = "en_core_web_lg"


class Redactor:
    """A redactor of sessions and texts that uses one set of options.

    Raises:
        SettingsError: An option has an invalid value.
        RedactionError: A detector cannot be loaded.
    """

    def __init__(self, options: RedactionOptions) -> None:
        if unknown := sorted(set(options.types) - set(KINDS)):
            raise SettingsError(
                f"The setting `redaction.types` names {unknown[0]!r}, which is not a type of "
                f"private data: choose from {', '.join(KINDS)}."
            )
        self._regions = tuple(options.phone_regions)
        self._allowed = {
            self._identity(kind, allowed)
            for allowed in options.allow
            if not _is_expression(allowed)
            for kind in ("PHONE", "")
        }
        self._allowed_forms = [
            _compiled(allowed) for allowed in options.allow if _is_expression(allowed)
        ]
        self._detectors: Detectors | None = None
        self._kinds = frozenset(options.types)
        self.values: dict[str, str] = {}
        self.private_id = False
        if options.enabled:
            try:
                _known_regions(options.phone_regions)
                self._detectors = Detectors(options.types, options.phone_regions, options.ner_model)
            except (SettingsError, RedactionError):
                raise
            except Exception as error:
                raise RedactionError(
                    f"The detectors of private data cannot be loaded ({type(error).__name__}: "
                    f"{error}), so nothing is written: install the packages in "
                    "requirements/lock.txt."
                ) from error

    def redact(self, session: Session, elsewhere: Mapping[str, str] | None = None) -> Counter[str]:
        """Redact a session in place, and return the number of replacements by kind.

        After the call, `self.values` has the values that were replaced and their kinds, until the
        next call. `self.private_id` is then true if the session's id looks private.

        The ids of the session and of its parent are not changed, because judges and lookups need
        them. If the name of a task, a trial or a model looks private, a hash replaces the name.

        Args:
            session: The session to redact.
            elsewhere: More private values by kind, which were found in other trials of the task (see
                `private_elsewhere`).

        Raises:
            RedactionError: A detector raised an exception.
        """
        self.values, self.private_id = {}, False
        if self._detectors is None:
            return Counter()
        texts = texts_of(session)
        views = seen_by_detectors(texts)
        finds = self._private_values(
            session, [*views, session.session_id, *_names_of(session).values()], elsewhere
        )
        if not finds:
            return Counter()
        names = Pseudonyms(texts, self._regions, _prompts_of(session))
        while finds:
            names.learn(finds)
            is_private = names.find(views)
            changed = [
                names.replaced(text) if private else text
                for text, private in zip(texts, is_private, strict=True)
            ]
            # A replacement may uncover another value, for example if two addresses stood next to
            # each other without a blank.
            views_of_changed = {
                index: seen_by_detectors([new])[0]
                for index, (new, old) in enumerate(zip(changed, texts, strict=True))
                if new != old
            }
            views = [views_of_changed.get(index, view) for index, view in enumerate(views)]
            texts, fresh = changed, [*views_of_changed.values()]
            finds = self._private_values(session, fresh) if fresh else {}
        if names.counts:
            replacing = iter(texts)
            rewrite(session, lambda _: next(replacing))
        self.values, self.private_id = names.replaced_values, names.stands_in(session.session_id)
        for field, value in _names_of(session).items():
            if names.stands_in(value):
                setattr(session, field, f"private:{hash_json(value)[:16]}")
        return names.counts

    def finds(self, session: Session) -> dict[str, str]:
        """Return every private value of a session with its kind.

        The ids of the session are not searched.

        Raises:
            RedactionError: A detector raised an exception.
        """
        return self._private_values(
            session, [*seen_by_detectors(texts_of(session)), *_names_of(session).values()]
        )

    def finds_in_texts(self, texts: Sequence[str]) -> dict[str, str]:
        """Return every private value in texts that belong to no session, and its kind.

        Raises:
            RedactionError: A detector raised an exception.
        """
        return self._private_values(_carrier(()), seen_by_detectors(list(texts)))

    def redact_text(self, text: str) -> str:
        """Return a text with pseudonyms. The text belongs to no session, such as a judge's reason.

        Raises:
            RedactionError: A detector raised an exception.
        """
        if self._detectors is None or not text.strip():
            return text
        carrier = _carrier([text])
        self.redact(carrier)
        return str(carrier.messages[0]["content"])

    def remaining(self, session: Session, values: Mapping[str, str]) -> Counter[str]:
        """Count by kind how often a redacted session still contains one of the given values in any
        form.

        The session is not changed.

        Args:
            session: The redacted session.
            values: Private values and their kinds, as `finds` returns them for the original
                session.
        """
        texts = [*texts_of(session), *_names_of(session).values()]
        names = Pseudonyms(texts, self._regions, _prompts_of(session))
        names.learn(self._private_in(session, values))
        for text, is_private in zip(texts, names.find(seen_by_detectors(texts)), strict=True):
            if is_private:
                names.replaced(text)
        return names.counts

    def private_elsewhere(self, session: Session, known: Known) -> dict[str, str]:
        """Return the values in a redacted session that are private in other trials of its task.

        The result maps each value to its kind.
        """
        texts = [*seen_by_detectors(texts_of(session)), *_names_of(session).values()]
        return self._private_in(
            session, known.within(unescaped_text("\n\n".join(texts)), self._regions)
        )

    def _private_values(
        self, session: Session, texts: list[str], elsewhere: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        if self._detectors is None:
            return {}
        written = "\n\n".join(
            [*texts, *(window for text in texts for window in decoded_windows(text))]
        )
        read = unescaped_text(written)
        try:
            values = {**(elsewhere or {}), **self._detectors.find(read)}
        except Exception as error:  # a detector's message may quote private data
            raise RedactionError(
                f"The search for private data failed in the session {session.session_id} of "
                f"{session.project}/{session.agent} ({type(error).__name__}), so nothing is "
                "written: report this as a bug, and describe the structure of the session."
            ) from error
        if read is not written:  # drop values that only the removal of escapes joined
            located = Values(values).within(texts, values)
            hidden = {value: kind for value, kind in values.items() if value not in located}
            located |= Search(hidden, self._regions).within(texts) if hidden else set()
            values = {
                value: kind
                for value, kind in values.items()
                if value in located or (elsewhere and value in elsewhere)
            }
        return self._private_in(session, values)

    def _private_in(self, session: Session, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values that must be replaced in a session.

        Values that the options allow, values of kinds that are not redacted, and names that a
        system prompt contains are left out.
        """
        # A name in the system prompt is kept. All trials of a task have the same prompt, but only
        # some of them contain the address that gives the name away.
        prompts = _prompts_of(session)
        return {
            value: kind
            for value, kind in values.items()
            if kind in self._kinds
            and not (
                self._stays(value, kind)
                or (kind == "NAME" and any(value in prompt for prompt in prompts))
            )
        }

    def _stays(self, value: str, kind: str) -> bool:
        is_allowed = (
            self._identity(kind, value) in self._allowed
            or self._identity("", value) in self._allowed
        )
        return is_allowed or any(form.fullmatch(value) for form in self._allowed_forms)

    def _identity(self, kind: str, value: str) -> str:
        return identity(kind, value, self._regions)


def _carrier(texts: Sequence[str]) -> Session:
    """Return a session that holds texts which do not belong to a session."""
    messages: list[Message] = [{"role": "user", "content": text} for text in texts]
    return Session(session_id="", project="", agent="", source="texts", messages=messages)


def _prompts_of(session: Session) -> list[str]:
    """Return the texts of the system messages in a session."""
    return [str(message["content"]) for message in session.messages if message["role"] == "system"]


def _names_of(session: Session) -> dict[str, str]:
    """Return the names that a session contains, except for its own id and its parent's id."""
    return {
        name: value
        for name in ("task_key", "task_id", "trial", "model_id")
        if (value := getattr(session, name))
    }


def _is_expression(allowed: str) -> bool:
    return len(allowed) > 2 and allowed[0] == allowed[-1] == "/"


def _compiled(allowed: str) -> re.Pattern[str]:
    try:
        return re.compile(allowed[1:-1], re.IGNORECASE)
    except re.error as error:
        raise SettingsError(
            f"The setting `redaction.allow` has {allowed!r}, which is not a regular expression "
            f"({error}): correct the pattern."
        ) from error


def check_options(options: RedactionOptions) -> None:
    """Check the redaction settings without loading the rules for keys and passwords.

    Loading the rules takes a second of processor time, and the code location would spend this
    second at every start.

    Raises:
        SettingsError: An option has an invalid value.
        RedactionError: A detector cannot be loaded.
    """
    Redactor(replace(options, types=tuple(sorted(set(options.types) - RULE_KINDS))))


def _known_regions(regions: tuple[str, ...]) -> None:
    if regions == RedactionOptions.phone_regions:
        return  # the import would cost each start of the code location a tenth of a second

    import phonenumbers

    if unknown := sorted(set(regions) - phonenumbers.SUPPORTED_REGIONS):
        raise SettingsError(
            f"The setting `redaction.phone_regions` has {unknown[0]!r}, which is not a country: "
            "use ISO 3166 codes such as US or DE."
        )
