"""Python names of omniagents, SAGE and swink-agent-eval, as thin adapters over this package.

- `omniagents` reads the sessions of a store, and trains all weights of a model.
- `sage` trains and evaluates an agent's model, and collects runs of an agent.
- `swink` exports scored runs.
- `samples` reads training data, `models` loads models, and `examples` repairs and redacts
  conversations that do not come from the lake. All three systems share these modules.

The graph does not use `compat`: assets call the lower packages directly.
"""
