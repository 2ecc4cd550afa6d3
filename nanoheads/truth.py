"""The known language, and how far any model is from its truth: labs/known_language/README.md."""

from .labs.known_language.library import Language

__all__ = ["Language"]
