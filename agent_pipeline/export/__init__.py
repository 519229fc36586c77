"""From a trained adapter to files that llama.cpp and Ollama serve, with proof that they are the
trained model.

`gguf_export.export` runs the whole way: `merge` (adapter into base, checked by logits), `converter`
(llama.cpp's own script as a subprocess), `llama` (the file loaded by a real llama.cpp), `parity`
(its template, tokens and greedy answers against transformers'). `ollama` writes the Modelfile and
registers the result with Ollama.
"""
