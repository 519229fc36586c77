"""Whole trainings in one call, for a notebook or a script: the names that people know from
elsewhere, over all the rooms below.

`sessions` finds sessions and makes data sets of them; `samples` takes data, and `models` models, in
the forms that people have them in; `intake` makes examples of conversations from outside the lake,
for `distillation`, `exporters` and `trajectories`; `sft` fine-tunes a model on sessions
(omniagents' names); `agent` trains, evaluates and keeps an agent's model, by the methods that
`methods` registers (SAGE's names); `rl` says in TRL's configurations how to learn from preferences
and rewards. What the graph does every night is not here: assets call the rooms below themselves.
"""
