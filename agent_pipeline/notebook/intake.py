"""Conversations from outside the lake (a run's results, trajectories), repaired and redacted as what is in it."""

from collections.abc import Sequence
from itertools import islice

from agent_pipeline.datasets.preferences import unfit_to_compare
from agent_pipeline.ingestion.reading import task_key
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.damage import DEFAULT_POLICY
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Session


class Intake:
    """Repairs and redacts sessions, in place, by the defaults of the lake's first stage.

    Raises:
        SettingsError, RedactionError: as `Redactor`.
    """

    def __init__(self, redaction: RedactionOptions) -> None:
        self._redactor = Redactor(redaction)

    def take(self, session: Session) -> str | None:
        """Why the session can be no example (`infrastructure_error`, `attack_succeeded`, `broken:<kind>`); `None` where it can be one.

        Raises:
            RedactionError: a detector raised.
        """
        return self.take_together([session])[0]

    def take_together(self, sessions: Sequence[Session]) -> list[str | None]:
        """The same for runs of one task: what is private in one of them is replaced in all, so that equal prompts stay equal.

        (A password that one run sends is known for one by its place in the call; in the other run's prompt nothing gives it away.)
        """
        for session in sessions:
            repair_session(session, DEFAULT_POLICY)
            session.task_key = session.task_key or task_key(session, None, "")
        if len(sessions) > 1:
            self._redact_as_one(sessions)
        for session in sessions:
            self._redactor.redact(session)
        return [unfit_to_compare(each) or (f"broken:{each.broken}" if each.broken else None) for each in sessions]

    def _redact_as_one(self, sessions: Sequence[Session]) -> None:
        whole = Session(session_id=sessions[0].session_id, project="", agent="", source="")
        for session in sessions:
            whole.messages += session.messages
            whole.tools += session.tools
        self._redactor.redact(whole)
        messages, tools = iter(whole.messages), iter(whole.tools)
        for session in sessions:
            session.messages = list(islice(messages, len(session.messages)))
            session.tools = list(islice(tools, len(session.tools)))
