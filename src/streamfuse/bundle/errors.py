"""The errors of this package."""


class BundleError(ValueError):
    """A bundle that cannot be used or written: one line that names the file and, where there is one, the field."""


class KeyProblem(ValueError):
    """A key that cannot be used: one line that names its file, where it has one, and shows nothing of it."""
