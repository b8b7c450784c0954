"""The version of vkq; CMake and pyproject.toml say the same (a test compares them)."""

__version__ = "0.1.0"
