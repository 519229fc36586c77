"""The redaction of exceptions. Dagster logs stack traces, and an exception's message may quote a
session.
"""

from collections.abc import Callable

from agent_pipeline.errors import PipelineError
from agent_pipeline.redaction import RedactionOptions, Redactor


def redact_exception(error: Exception, options: RedactionOptions) -> Exception:
    """Return an exception without private data in its message or in the messages of its causes.

    Return the same exception if its message can be changed. If the detectors cannot be used, only
    the messages of our own errors are kept.
    """
    redact = _redact_or_hide(options)
    changed = _without_private(error, redact, {})
    return changed if isinstance(changed, Exception) else error


def redact_sentence(sentence: str, options: RedactionOptions) -> str:
    """Return an error message with pseudonyms. If the detectors cannot be used, return it
    unchanged.
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
    error.args = arguments  # the class may build its message from other attributes
    substitute = RuntimeError(f"{type(error).__name__}: {redact(text)}")
    return substitute.with_traceback(error.__traceback__)
