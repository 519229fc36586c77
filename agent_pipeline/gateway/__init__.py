"""A share of an agent's real traffic for its champion, through LiteLLM's proxy.

`traffic` writes the proxy's configuration. `litellm_hook` runs inside the proxy, in LiteLLM's own
environment, so it and `turn_checks` import nothing that is not small. Serving a model does not
belong here (`export`).
"""
