"""From published checkpoints (Hugging Face folders, GGUF files) to param trees, and param trees on disk (Orbax)."""
