"""Fine-tune diffusion models on many rewards at once."""

__version__ = "0.1.0"
