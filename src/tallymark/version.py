"""The version of the library, as records carry it."""

__version__ = "0.1.0"
