"""The one error of this package."""


class BundleError(ValueError):
    """A bundle that cannot be used or written: one line that names the file and, where there is one, the field."""
