"""What Ollama must be told of a chat format: a Go template that writes it, and the tokens that end an answer.

Ollama renders by Go's text/template, not by the Jinja template in the GGUF. A model trained with our Hermes-style ChatML template
gets its Go twin; any other is recognised by the marks of its template, else by its architecture (the fallback table).
Variables: https://docs.ollama.com/template
"""

import re

import msgspec

HERMES = """\
{{- $first := "" }}
{{- with .Messages }}{{ if eq (index . 0).Role "system" }}{{ $first = (index . 0).Content }}{{ end }}{{ end }}
{{- if or $first .Tools }}<|im_start|>system
{{ $first }}
{{- if .Tools }}
{{- if $first }}

{{ end }}# Tools
To call a tool, answer with
<tool_call>
{"name":<name>,"arguments":<object>}
</tool_call>
<tools>
{{ range .Tools }}{"name":{{ json .Function.Name }},{{/**/ -}}
"description":{{ json .Function.Description }},"parameters":{{ json .Function.Parameters }}}
{{ end }}</tools>
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "tool" }}<|im_start|>tool
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ .Content }}
{{- range $j, $call := .ToolCalls }}
{{- if or $message.Content $j }}
{{ end }}<tool_call>
{"name":{{ json $call.Function.Name }},"arguments":{{ json $call.Function.Arguments }}}
</tool_call>
{{- end }}
{{- if not $last }}<|im_end|>
{{ end }}
{{- else if or (ne .Role "system") $i }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<|im_start|>assistant
{{ end }}
{{- end }}"""
"""Twin of `training/hermes_chatml.jinja`, equal to it but inside JSON: Go sorts keys and escapes `<`, `>` and `&`.

A trailing assistant message stays open: Ollama has the model continue it.
"""

CHATML = """\
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}<|im_start|>{{ .Role }}
{{ .Content }}
{{- if not (and $last (eq .Role "assistant")) }}<|im_end|>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<|im_start|>assistant
{{ end }}
{{- end }}"""

LLAMA3 = """\
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}
{{- if not (and $last (eq .Role "assistant")) }}<|eot_id|>
{{- end }}
{{- if and $last (ne .Role "assistant") }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- end }}"""

MISTRAL = """\
{{- $system := "" }}
{{- range $i, $message := .Messages }}
{{- if eq .Role "system" }}{{ $system = .Content }}
{{- else if eq .Role "user" }}[INST] {{ if $system }}{{ $system }}

{{ end }}{{ .Content }} [/INST]{{ $system = "" }}
{{- else if eq .Role "assistant" }} {{ .Content }}
{{- if gt (len (slice $.Messages $i)) 1 }}</s>{{ end }}
{{- end }}
{{- end }}"""

GEMMA = """\
{{- $system := "" }}
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "system" }}{{ $system = .Content }}
{{- else }}<start_of_turn>{{ if eq .Role "assistant" }}model{{ else }}user{{ end }}
{{ if and $system (eq .Role "user") }}{{ $system }}

{{ $system = "" }}{{ end }}{{ .Content }}
{{- if not (and $last (eq .Role "assistant")) }}<end_of_turn>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<start_of_turn>model
{{ end }}
{{- end }}
{{- end }}"""

PHI = """\
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}<|{{ .Role }}|>
{{ .Content }}
{{- if not (and $last (eq .Role "assistant")) }}<|end|>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<|assistant|>
{{ end }}
{{- end }}"""


class Dialect(msgspec.Struct, frozen=True):
    """One chat format. `marks`: a Jinja template that has them all writes it. `model_types`: Hugging Face's names, for the fallback."""

    name: str
    template: str
    stops: tuple[str, ...]
    marks: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    tools: bool = False


DIALECTS = (
    # Its marks are whole phrases: another template that merely has <tool_call> too (Qwen's) introduces its tools in other words.
    Dialect(
        "hermes", HERMES, ("<|im_start|>", "<|im_end|>"), ("# Tools\\nTo call a tool, answer with\\n", "<|im_start|>tool\\n"), tools=True
    ),
    Dialect("chatml", CHATML, ("<|im_start|>", "<|im_end|>"), ("<|im_start|>",), ("qwen2", "qwen2_5", "qwen2_moe", "qwen3", "qwen3_moe")),
    Dialect("llama3", LLAMA3, ("<|eot_id|>",), ("<|start_header_id|>",), ("llama",)),
    Dialect("mistral", MISTRAL, ("</s>",), ("[INST]",), ("mistral", "mixtral")),
    Dialect("gemma", GEMMA, ("<end_of_turn>",), ("<start_of_turn>",), ("gemma", "gemma2", "gemma3", "gemma3_text")),
    Dialect("phi", PHI, ("<|end|>",), ("<|end|>",), ("phi", "phi3")),
)
"""In the order in which they are tried."""


def dialect_of(chat_template: str | None, model_type: str = "") -> Dialect | None:
    """The format a Jinja chat template writes, by its marks; without a template, the one usual for the architecture; else None.

    A template that is there but not recognised gives None too: the architecture's usual format would be another text than the one
    trained on, and without `TEMPLATE` Ollama looks at the GGUF's own template.
    """
    if chat_template:
        return next((dialect for dialect in DIALECTS if all(mark in chat_template for mark in dialect.marks)), None)
    wanted = re.sub(r"[^a-z0-9]+", "_", model_type.lower())
    return next((dialect for dialect in DIALECTS if wanted in dialect.model_types), None)
