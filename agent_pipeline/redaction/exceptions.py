"""The texts of exceptions without private data: a stack trace goes into Dagster's log, and its
message may quote a session.
"""

from collections.abc import Callable

from agent_pipeline.errors import PipelineError
from agent_pipeline.redaction import RedactionOptions, Redactor


def redact_exception(error: Exception, options: RedactionOptions) -> Exception:
    """Return an exception whose text, and whose causes' texts, hold nothing private: the same one,
    if its text can be changed.

    If the detectors cannot be used, only the sentences of our own errors stay.
    """
    redact = _redact_or_hide(options)
    changed = _without_private(error, redact, {})
    return changed if isinstance(changed, Exception) else error


def redact_sentence(sentence: str, options: RedactionOptions) -> str:
    """Return the sentence of an error with pseudonyms, or as it is if the detectors cannot be
    used.
    """
    redact = _redact_or_hide(options)
    return sentence if redact is _hide else redact(sentence)


def _redact_or_hide(options: RedactionOptions) -> Callable[[str], str]:
    try:
        return Redactor(options).redact_text
    except PipelineError:
        return _hide


def _hide(text: str) -> str:
    return "a text that could not be searched"


def _without_private(
    error: BaseException, redact: Callable[[str], str], done: dict[int, BaseException]
) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    changed = done[id(error)] = _with_redacted_text(error, redact)
    suppressed = error.__suppress_context__
    for name in ("__cause__", "__context__"):
        link = getattr(error, name)
        setattr(changed, name, _without_private(link, redact, done) if link else None)
    changed.__suppress_context__ = suppressed
    return changed


def _with_redacted_text(error: BaseException, redact: Callable[[str], str]) -> BaseException:
    text = str(error)
    if (isinstance(error, PipelineError) and redact is _hide) or redact(text) == text:
        return error
    arguments = error.args
    error.args = tuple(redact(part) if isinstance(part, str) else part for part in arguments)
    if redact(str(error)) == str(error):
        return error
    error.args = arguments  # its class makes the text from other attributes
    substitute = RuntimeError(f"{type(error).__name__}: {redact(text)}")
    return substitute.with_traceback(error.__traceback__)
