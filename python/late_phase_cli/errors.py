"""What a user can put right: the driver prints the text, without a traceback, and ends with status
2.
"""


class UserError(Exception):
    """What was expected, and what was received instead."""
