"""From rows of conversations to a LoRA adapter.

`base_model` finds the model to start from, `templates` makes sure that its chat template renders tools without loss,
`masks` turns a conversation into tokens and says which of them are trained, `truncation` makes long ones fit, `encoding`
does these for a whole data set and counts what it left out, `adapter` trains and resumes, `losses` measures how surprised a
model is by each row. `config` holds every number that has an effect on the result, `identity` the hash that says whether a
training would repeat one that was already done.
"""
