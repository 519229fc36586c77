"""The evaluation of models: answers to held-out turns, and tasks that are played in a world.

`samples` turns held-out conversations into one question per turn. `turns` lets a model answer the
questions (with `greedy` for the decoding) and measures how likely it calls a tool
(`call_probability`). `answer_scoring` and `call_matching` judge the answers, and `paired` and
`intervals` compute how certain a difference is. `evaluate` does all of this for a base model and
its adapter. `episodes` lets a model play whole tasks in a world (`worlds`). The decision about
promotion is in the package `promotion`.
"""
