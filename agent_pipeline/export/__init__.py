"""Export of a trained adapter to files for llama.cpp and Ollama, with checks that the files behave
like the trained model.

`gguf_export.export` runs all steps. `merge` merges the adapter into the base model and compares
logits. `converter` runs llama.cpp's own script as a subprocess. `llama` loads a file in a real
llama.cpp. `parity` compares its template, tokens and greedy answers with those of transformers.
`ollama` writes the Modelfile and registers the model with Ollama. The decision to serve an export
is in the package `promotion`.
"""
