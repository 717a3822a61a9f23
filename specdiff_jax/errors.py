"""The one exception for bad input, so that a command can tell it from a fault of its own."""


class InputError(ValueError):
    """Something that the user gave can't be used.

    The message is one line that names the file, key or value and says what to do. Commands print it and exit with 2.
    """
