"""Base models: loading, devices, and chat templates.

This package changes when a new model family or another tokenizer appears. `families` lists the
families, `chat_templates` chooses a template, `rendering` turns a conversation into text, and
`tool_call_parsers` reads tool calls back from text. Which tokens are trained is decided in
`tokenization`.
"""
