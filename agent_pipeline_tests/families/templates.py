"""Chat templates of families that no package here ships, written from their documentation: what they show, in which tokens, and what they
refuse."""

MISTRAL = """{{- bos_token -}}
{%- set seen = namespace(user=-1, system='', next='user') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{%- set seen.system = message.content -%}{%- endif -%}
    {%- if message.role == 'user' -%}{%- set seen.user = loop.index0 -%}{%- endif -%}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) -%}
        {%- if message.role != seen.next -%}{{- raise_exception('Users and assistants must alternate') -}}{%- endif -%}
        {%- set seen.next = 'assistant' if message.role == 'user' else 'user' -%}
    {%- endif -%}
{%- endfor -%}
@head@
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- if tools and loop.index0 == seen.user -%}{{- '[AVAILABLE_TOOLS]@' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
        {{- '[INST]@' -}}
        @before@
        {{- message.content + '[/INST]' -}}
    {%- elif message.role == 'assistant' and message.tool_calls -%}
        {{- '[TOOL_CALLS]@[' -}}
        {%- for call in message.tool_calls -%}
            {%- if call.id | length != 9 -%}{{- raise_exception('Ids of calls have nine letters and digits') -}}{%- endif -%}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' -}}
            {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
        {%- endfor -%}
        {{- ']' + eos_token -}}
    {%- elif message.role == 'assistant' -%}
        {{- '@' + message.content + eos_token -}}
    {%- elif message.role == 'tool' -%}
        @result@
    {%- endif -%}
{%- endfor -%}"""
_SYSTEM_FIRST = "{%- if seen.system -%}{{- '[SYSTEM_PROMPT]' + seen.system + '[/SYSTEM_PROMPT]' -}}{%- endif -%}"
_SYSTEM_LAST = (
    "{%- if seen.system and loop.index0 == seen.user -%}{{- seen.system + '\\n\\n' -}}{%- endif -%}"
)
_JSON_RESULT = """{{- '[TOOL_RESULTS]@{"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' -}}"""
_PLAIN_RESULT = "{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' -}}"


def mistral(space: str, v7: bool) -> str:
    """Mistral's template: version 3 (with spaces; Nemo without), or 7 (Small), in which the system has a place of its own."""
    parts = {
        "@head@": _SYSTEM_FIRST if v7 else "",
        "@before@": "" if v7 else _SYSTEM_LAST,
        "@result@": _PLAIN_RESULT if v7 else _JSON_RESULT,
    }
    text = MISTRAL
    for name, part in parts.items():
        text = text.replace(name, part)
    return text.replace("@", space)


SMOLLM3 = """{%- set today = strftime_now('%d %B %Y') -%}
{{- '<|im_start|>system\\n## Metadata\\n\\nToday Date: ' + today + '\\nReasoning Mode: /no_think\\n\\n' -}}
{%- if messages[0].role == 'system' -%}{{- '## Custom Instructions\\n\\n' + messages[0].content + '\\n\\n' -}}{%- endif -%}
{%- if xml_tools -%}{{- '### Tools\\n\\n<tools>\\n' + xml_tools | tojson + '\\n</tools>\\n\\n' -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages -%}
    {%- if message.role == 'user' or message.role == 'tool' -%}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' + message.content + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' -}}{%- endif -%}"""

FUNCTION_GEMMA = """{%- macro value_of(value) -%}
    {%- if value is string -%}{{- '<escape>' + value + '<escape>' -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is none -%}{{- 'null' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- for key, item in value.items() -%}{{- key + ':' + value_of(item) -}}{%- if not loop.last -%}{{- ',' -}}{%- endif -%}{%- endfor -%}
        {{- '}' -}}
    {%- elif value is iterable -%}
        {{- '[' -}}
        {%- for item in value -%}{{- value_of(item) -}}{%- if not loop.last -%}{{- ',' -}}{%- endif -%}{%- endfor -%}
        {{- ']' -}}
    {%- else -%}{{- value | string -}}
    {%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if tools or messages[0].role == 'system' -%}
    {{- '<start_of_turn>developer\n' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<start_function_declaration>declaration:' + tool.function.name + '{description:' + value_of(tool.function.description) + ',parameters:' + value_of(tool.function.parameters) + '}<end_function_declaration>' -}}
    {%- endfor -%}
    {{- '<end_of_turn>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<start_of_turn>user\n' + message.content + '<end_of_turn>\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
        {{- message.content or '' -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '<start_function_call>call:' + call.function.name + value_of(call.function.arguments) + '<end_function_call>' -}}
        {%- endfor -%}
        {%- if message.tool_calls -%}{{- '<start_function_response>' -}}{%- else -%}{{- '<end_of_turn>\n' -}}{%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if messages[loop.index0 - 1].role == 'tool' -%}{{- '<start_function_response>' -}}{%- endif -%}
        {{- 'response:' + message.name + '{value:' + value_of(message.content) + '}<end_function_response>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"""
