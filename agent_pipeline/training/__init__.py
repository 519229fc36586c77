"""Training: from rows of conversations to a LoRA adapter.

This package changes when a training objective or an agent's chain of steps changes. `config` holds
every option that has an effect, `provenance` what a result was made from, `chain` the order of the
steps. `sft` trains an adapter by imitation, and `further_steps` continues to train an adapter.
`trainers` has one module per training method. Losses and attention belong to `engine`, and whether
a model is good enough belongs to `evaluation` and `promotion`.
"""
