"""The errors of this package."""


class BundleError(ValueError):
    """A bundle cannot be used or written; the one-line message names the file and, if there is one, the field."""


class KeyProblem(ValueError):
    """A key cannot be used; the one-line message names its file, if it has one, and shows nothing of the key."""
