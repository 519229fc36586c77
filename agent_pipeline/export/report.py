"""The report of an export: the file `parity.json`, and the report in the manifest of an export.

How the figures are computed is in `parity`, `served_answers`, `conversations` and `limits`. Fields
that older versions did not write get defaults.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.storage.artifacts import Artifact


class MergeLogits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest differences of logits that merging an adapter makes.

    Attributes:
        prompts: The prompts that were compared.
        tokens: Their tokens.
        merged_vs_adapter: The merged model and the base model with its adapter.
        merged_vs_base: The merged model and the base model alone.
        tolerance: The largest allowed difference between the merged model and the adapter.
    """

    prompts: int
    tokens: int
    merged_vs_adapter: float
    merged_vs_base: float
    tolerance: float


class ToolDifference(msgspec.Struct):
    """A tool that llama.cpp does not show as training did.

    Attributes:
        conversations: The conversations in which the tool differs.
        why: The first reason.
    """

    conversations: int
    why: str


class TemplateParity(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts llama.cpp shows the model as training did.

    Attributes:
        texts: The texts that were compared.
        tokens: Their tokens.
        special_literals: The texts in which a message holds special tokens.
        line_ends: The texts whose words before a call have one line end more than in training.
        tools: By tool, what is not served as it was trained.
    """

    texts: int
    tokens: int
    special_literals: int = 0
    line_ends: int = 0
    tools: dict[str, ToolDifference] = {}


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A greedy answer of a file that differs from the merged model's.

    Attributes:
        prompt: The number of the prompt, from 1.
        position: The number of equal tokens before the difference.
        merged_token: The merged model's next token.
        gguf_token: The file's next token.
        logit_gap: By how many logits the merged model prefers its own token.
        near_tie: Whether the gap is too small to matter.
    """

    prompt: int
    position: int
    merged_token: str
    gguf_token: str
    logit_gap: float
    near_tie: bool


class AnswerParity(msgspec.Struct, frozen=True, kw_only=True):
    """The greedy answers of a file, compared with the merged model's.

    Attributes:
        prompts: The prompts that were answered.
        exact: The answers that are the same, token for token.
        rate: The share of such answers.
        near_ties: The answers that differ only after a near-tie.
        agreement: The share of answers that are the same, or differ only after a near-tie.
        mismatches: The answers that differ.
    """

    prompts: int
    exact: int
    rate: float = 0.0
    near_ties: int = 0
    agreement: float = 0.0
    mismatches: list[Mismatch] = []

    def __str__(self) -> str:
        ties = f" (and {self.near_ties} up to a near-tie)" if self.near_ties else ""
        return f"{self.exact} of {self.prompts}{ties}"


class KeptDecisions(msgspec.Struct, frozen=True, kw_only=True):
    """What a file keeps of the merged model's decisions.

    Attributes:
        turns: The turns that were answered.
        decisions: The turns with the same decision to call or not.
        call_turns: The turns at which the merged model calls.
        calls: The turns at which the file makes the same calls.
        explained: The other turns whose answers part at a near-tie.
        server_turns: The turns that llama.cpp's server answered.
        server: The turns at which the server answers what the tokens say.
        failed: What was lost; empty if the file may be served.
    """

    turns: int
    decisions: int
    call_turns: int
    calls: int
    explained: int = 0
    server_turns: int = 0
    server: int = 0
    failed: str = ""


class ServingLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a tool that llama.cpp's server cannot serve as they were trained.

    Attributes:
        tool: The name of the tool.
        count: The number of calls or conversations.
        of: Of how many, and of what.
        why: The reason.
    """

    tool: str
    count: int
    of: str
    why: str


class Played(msgspec.Struct):
    """What playing some conversations showed.

    Attributes:
        conversations: The conversations that were played.
        turns: The prompts after the first one that were compared.
        equal: The prompts with the same tokens as in training.
        parted: The conversations that ended early, because the server read an answer otherwise
            than it was written.
        difference: The first difference between two prompts; empty if there is none.
    """

    conversations: int = 0
    turns: int = 0
    equal: int = 0
    parted: int = 0
    difference: str = ""


class ServedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The one file of an export that is served, and how.

    Attributes:
        gguf: The name of the file; empty in reports of old versions.
        family: The family of the model; `None` if it is not known.
        template: Where the server finds the chat template: `gguf` or `ollama`.
        stops: The tokens that end an answer.
        num_ctx: The context in tokens; 0 for the context of the model.
    """

    gguf: str = ""
    family: str | None = None
    template: str | None = None
    stops: list[str] = []
    num_ctx: int = 0


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that the exported files answer as the trained model does.

    Attributes:
        ok: Whether the export may be used.
        threshold: The least agreement of an f16 or f32 file.
        max_new_tokens: The longest compared answer.
        logits: What merging the adapter changed; `None` if the model was whole.
        template: The compared texts, by type of file; `None` for a model without a template.
        answers: The compared answers, by type.
        gate: The kept decisions, by type.
        limits: The calls that llama.cpp's server cannot serve, the most frequent first.
        played: The played conversations, by type.
        failed: By type, why a file is not served.
        files: The size of each file in bytes, by its name.
        ollama: The file that is served. The key has the name of the first server.
    """

    ok: bool = True
    threshold: float = 0.0
    max_new_tokens: int = 0
    logits: MergeLogits | None = None
    template: dict[str, TemplateParity | None] = {}
    answers: dict[str, AnswerParity] = {}
    gate: dict[str, KeptDecisions] = {}
    limits: list[ServingLimit] = []
    played: dict[str, Played] = {}
    failed: dict[str, str] = {}
    files: dict[str, int] = {}
    ollama: ServedFile = ServedFile()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values


def parse_export_report(report: Mapping[str, object]) -> ExportReport:
    """Return a report from its JSON form.

    Raises:
        msgspec.ValidationError: the JSON is no report of an export.
    """
    return msgspec.convert(report, ExportReport)


def read_export_report(export: Artifact) -> ExportReport:
    """Return the report of an artifact `gguf_export`.

    Raises:
        DataError: the report is of an older version and cannot be read.
    """
    try:
        return parse_export_report(export.manifest["report"])
    except msgspec.ValidationError as error:
        raise DataError(
            f"The report of the export {export.identity[:16]} of {export.key} cannot be read "
            f"({error}): it is of an older version. Materialize gguf_export again."
        ) from error
