"""Secrets and personal data become pseudonyms before anything of a session is written.

A private value becomes `<EMAIL_1>`, `<API_KEY_2>`: its kind, and a number by first appearance in
the session. The same value (case and separators aside) has the same pseudonym everywhere in its
session, so that the address in a call's arguments still is the address in its result. A JSON text
stays one, with its layout; a number in it that is private becomes a string. What was redacted
before is left alone.

Fails closed: a detector that cannot be loaded or raises is a `RedactionError`, and the session is
not handed on.
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
    """What is redacted.

    `allow` are values that stay: a text between slashes is a regular expression for a whole value,
    any other one exact value (case and separators aside). `types` are kinds of `KINDS`.
    `phone_regions` are countries (ISO 3166: `US`) whose numbers are known without their `+`.
    `ner_model` is an installed spaCy pipeline, which finds `PERSON` and `LOCATION` where `types`
    has them.
    """

    enabled: bool = True
    allow: tuple[str, ...] = ()
    types: tuple[str, ...] = DEFAULT_TYPES
    phone_regions: tuple[str, ...] = ("US",)
    ner_model: str = "en_core_web_lg"


class Redactor:
    """Redacts sessions by one set of options.

    Raises:
        SettingsError: an option has a value that it cannot have.
        RedactionError: a detector cannot be loaded.
    """

    def __init__(self, options: RedactionOptions) -> None:
        if unknown := sorted(set(options.types) - set(KINDS)):
            raise SettingsError(
                f"redaction.types has {unknown[0]!r}, which is not a kind: there are "
                f"{', '.join(KINDS)}."
            )
        self._regions = tuple(options.phone_regions)
        self._allowed = {
            self._identity(kind, each)
            for each in options.allow
            if not _is_expression(each)
            for kind in ("PHONE", "")
        }
        self._allowed_forms = [_compiled(each) for each in options.allow if _is_expression(each)]
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
                    f"{error}): install what "
                    "requirements/lock.txt names; nothing is written without them."
                ) from error

    def redact(self, session: Session, also: Mapping[str, str] | None = None) -> Counter[str]:
        """Redact a session in place; answers how many places became a pseudonym, by kind.

        Until the next call `values` has what they held, and `private_id` whether the session's id
        looks private. `also` are more private values with their kinds: those that other trials of
        the task gave away (`private_elsewhere`).

        A session's id and its parent's stay: whatever judges or looks up a session names it by its
        id. A task, a trial or a model whose name looks private becomes its hash.

        Raises:
            RedactionError: a detector raised.
        """
        self.values, self.private_id = {}, False
        if self._detectors is None:
            return Counter()
        texts = texts_of(session)
        views = seen_by_detectors(texts)
        finds = self._private_values(
            session, [*views, session.session_id, *_names_of(session).values()], also
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
            # What is gone may lay something open: two addresses without a blank between them, say.
            fresh = seen_by_detectors(
                [new for new, old in zip(changed, texts, strict=True) if new != old]
            )
            texts, views = changed, seen_by_detectors(changed)
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
        """Every private value of a session with its kind, its ids aside.

        Raises:
            RedactionError: a detector raised.
        """
        return self._private_values(
            session, [*seen_by_detectors(texts_of(session)), *_names_of(session).values()]
        )

    def finds_in_texts(self, texts: Sequence[str]) -> dict[str, str]:
        """Return every private value of texts that belong to no session, with its kind.

        Raises:
            RedactionError: a detector raised.
        """
        return self._private_values(_carrier(()), seen_by_detectors(list(texts)))

    def redact_text(self, text: str) -> str:
        """Return a text that belongs to no session, such as a judge's reason, with pseudonyms.

        Raises:
            RedactionError: a detector raised.
        """
        if self._detectors is None or not text.strip():
            return text
        carrier = _carrier([text])
        self.redact(carrier)
        return str(carrier.messages[0]["content"])

    def remaining(self, session: Session, values: Mapping[str, str]) -> Counter[str]:
        """How many places of a redacted session hold one of the values in any form, by kind; the
        session stays as it is.

        `values` are private values with their kinds, as `finds` returns them of the session in its
        store.
        """
        texts = [*texts_of(session), *_names_of(session).values()]
        names = Pseudonyms(texts, self._regions, _prompts_of(session))
        names.learn(self._private_in(session, values))
        for text, is_private in zip(texts, names.find(seen_by_detectors(texts)), strict=True):
            if is_private:
                names.replaced(text)
        return names.counts

    def private_elsewhere(self, session: Session, known: Known) -> dict[str, str]:
        """What a redacted session still says of what other trials of its task call private, by
        value its kind.
        """
        texts = [*seen_by_detectors(texts_of(session)), *_names_of(session).values()]
        return self._private_in(
            session, known.within(unescaped_text("\n\n".join(texts)), self._regions)
        )

    def _private_values(
        self, session: Session, texts: list[str], also: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        if self._detectors is None:
            return {}
        written = "\n\n".join(
            [*texts, *(window for text in texts for window in decoded_windows(text))]
        )
        read = unescaped_text(written)
        try:
            values = {**(also or {}), **self._detectors.find(read)}
        except Exception as error:  # its text may hold what is private: the type must do
            raise RedactionError(
                f"The search for private data failed in session {session.session_id} of "
                f"{session.project}/{session.agent} "
                f"({type(error).__name__}): nothing is written; report it with the session's shape."
            ) from error
        if read is not written:  # what the removal of escapes joined stands nowhere
            located = Values(values).within(texts, values)
            hidden = {value: kind for value, kind in values.items() if value not in located}
            located |= Search(hidden, self._regions).within(texts) if hidden else set()
            values = {
                value: kind
                for value, kind in values.items()
                if value in located or (also and value in also)
            }
        return self._private_in(session, values)

    def _private_in(self, session: Session, values: Mapping[str, str]) -> dict[str, str]:
        """The values without those that stay in a session, and those of kinds that are not looked
        for.
        """
        # A name in the system prompt stays: trials of one task have one prompt, whichever of them
        # meets the address.
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
    """Return a session that holds texts of no session."""
    messages: list[Message] = [{"role": "user", "content": text} for text in texts]
    return Session(session_id="", project="", agent="", source="texts", messages=messages)


def _prompts_of(session: Session) -> list[str]:
    """The system messages of a session."""
    return [str(message["content"]) for message in session.messages if message["role"] == "system"]


def _names_of(session: Session) -> dict[str, str]:
    """The names that a session has beside its own and its parent's."""
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
            f"redaction.allow has {allowed!r}, which is not a regular expression ({error}): "
            f"correct it."
        ) from error


def check_options(options: RedactionOptions) -> None:
    """Check the settings of redaction without loading the rules for keys and passwords.

    Loading the rules takes a second of processor time, which each start of the code location would
    spend.

    Raises:
        SettingsError: an option has a value that it cannot have.
        RedactionError: a detector cannot be loaded.
    """
    Redactor(replace(options, types=tuple(sorted(set(options.types) - RULE_KINDS))))


def _known_regions(regions: tuple[str, ...]) -> None:
    if regions == RedactionOptions.phone_regions:
        return  # the import would cost each start of the code location a tenth of a second

    import phonenumbers

    if unknown := sorted(set(regions) - phonenumbers.SUPPORTED_REGIONS):
        raise SettingsError(
            f"redaction.phone_regions has {unknown[0]!r}, which is not a country: give ISO 3166 "
            f"codes such as US or DE."
        )
