"""The version of vkq, which pyproject.toml reads from this module."""

__version__ = "0.1.0"
