"""The report of an export, which is stored in `parity.json` and in the export's manifest.

The figures are computed in `parity`, `served_answers`, `conversations` and `limits`. Fields that
older versions did not write get defaults.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.structs import convert_value


class MergeLogits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest differences of logits before and after an adapter is merged.

    Attributes:
        prompts: The number of compared prompts.
        tokens: The number of tokens in these prompts.
        merged_vs_adapter: The difference between the merged model and the base model with its
            adapter.
        merged_vs_base: The difference between the merged model and the base model alone.
        tolerance: The largest allowed difference between the merged model and the adapter.
    """

    prompts: int
    tokens: int
    merged_vs_adapter: float
    merged_vs_base: float
    tolerance: float


class ToolDifference(msgspec.Struct):
    """A tool that llama.cpp renders differently than in training.

    Attributes:
        conversations: The number of conversations in which the tool differs.
        why: The first reason.
    """

    conversations: int
    why: str


class TemplateParity(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the texts that llama.cpp renders with the texts of training.

    Attributes:
        texts: The number of compared texts.
        tokens: The number of tokens in these texts.
        special_literals: The number of texts in which a message contains special tokens.
        line_ends: The number of texts whose words before a call have one more line end than in
            training.
        tools: The differences by tool.
    """

    texts: int
    tokens: int
    special_literals: int = 0
    line_ends: int = 0
    tools: dict[str, ToolDifference] = {}


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A greedy answer of a file that differs from the merged model's answer.

    Attributes:
        prompt: The number of the prompt, from 1.
        position: The number of equal tokens before the difference.
        merged_token: The merged model's next token.
        gguf_token: The file's next token.
        logit_gap: The difference of logits by which the merged model prefers its own token.
        near_tie: Whether the gap is so small that rounding explains it.
    """

    prompt: int
    position: int
    merged_token: str
    gguf_token: str
    logit_gap: float
    near_tie: bool


class AnswerParity(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the greedy answers from a file with the merged model's answers.

    Attributes:
        prompts: The number of answered prompts.
        exact: The number of answers that are identical, token for token.
        rate: The share of identical answers.
        near_ties: The number of answers that differ only after a near-tie.
        agreement: The share of answers that are identical or differ only after a near-tie.
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
    """The merged model's decisions that a file keeps.

    Attributes:
        turns: The number of answered turns.
        decisions: The number of turns with the same decision to call or not.
        call_turns: The number of turns at which the merged model calls.
        calls: The number of turns at which the file makes the same calls.
        explained: The number of other turns whose answers differ only after a near-tie.
        server_turns: The number of turns that llama.cpp's server answered.
        server: The number of turns at which the server's answer matches the tokens.
        failed: The reason why the file must not be served; empty if it may be served.
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
    """The tool calls that llama.cpp's server cannot serve as they were trained.

    Attributes:
        tool: The name of the tool.
        count: The number of affected calls or conversations.
        of: The total, as a text such as `20 calls`.
        why: The reason.
    """

    tool: str
    count: int
    of: str
    why: str


class Played(msgspec.Struct):
    """The result of playing conversations with a server.

    Attributes:
        conversations: The number of conversations that were played.
        turns: The number of compared prompts after the first prompt.
        equal: The number of prompts with the same tokens as in training.
        parted: The number of conversations that ended early, because the server interpreted an
            answer differently than it was written.
        difference: The first difference between two prompts; empty if there is none.
    """

    conversations: int = 0
    turns: int = 0
    equal: int = 0
    parted: int = 0
    difference: str = ""


class ServedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an export that is served, and its serving parameters.

    Attributes:
        gguf: The name of the file; empty in reports of old versions.
        family: The model family; `None` if it is not known.
        template: The source of the server's chat template: `gguf` or `ollama`.
        stops: The tokens that end an answer.
        num_ctx: The context in tokens; 0 for the context of the model.
    """

    gguf: str = ""
    family: str | None = None
    template: str | None = None
    stops: list[str] = []
    num_ctx: int = 0


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence that the exported files give the same answers as the trained model.

    Attributes:
        ok: Whether the export may be used.
        threshold: The minimum agreement of an f16 or f32 file.
        max_new_tokens: The maximum number of tokens in a compared answer.
        logits: The effect of merging the adapter; `None` if the model was already whole.
        template: The comparison of texts, by type of file; `None` for a model without a template.
        answers: The comparison of answers, by type.
        gate: The kept decisions, by type.
        too_long: The number of held-out conversations that were not compared, because they do not
            fit into the model's context.
        limits: The calls that llama.cpp's server cannot serve, the most frequent first.
        played: The played conversations, by type.
        failed: The reasons why files are not served, by type.
        files: The size of each file in bytes, by its name.
        ollama: The file that is served. The key is named after the first supported server.
    """

    ok: bool = True
    threshold: float = 0.0
    max_new_tokens: int = 0
    logits: MergeLogits | None = None
    template: dict[str, TemplateParity | None] = {}
    answers: dict[str, AnswerParity] = {}
    gate: dict[str, KeptDecisions] = {}
    too_long: int = 0
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
        msgspec.ValidationError: The JSON is not the report of an export.
    """
    return convert_value(report, ExportReport)


def read_export_report(export: Artifact) -> ExportReport:
    """Return the report of an artifact `gguf_export`.

    Raises:
        DataError: The report was written by an older version and cannot be read.
    """
    return export.read_report(parse_export_report)
