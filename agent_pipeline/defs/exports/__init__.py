"""Assets of the stage `exports`: GGUF files, and the champion model that is served."""
