"""Assets of the stage `exports`: GGUF files, and the champion that is served."""
