"""Errors that a user can fix: the driver prints the message, without a traceback, and ends with
status 2.
"""


class UserError(Exception):
    """What was expected, and what was received instead."""
