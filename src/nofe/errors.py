"""The ways a command can end before its end. Each message is one line: the input, the reason, the next move."""


class NofeError(Exception):
    """Anything nofe reports to its user instead of a traceback."""

    exit_code = 1
    told = False  # another process of the same launch raises the same, and says so


class UserError(NofeError):
    """The input is wrong and the user can put it right: a misspelt name, an unreadable file."""

    exit_code = 2


class RunError(NofeError):
    """The input was fine and the run failed: a loss that is not finite, a full disk."""


class Interrupted(NofeError):
    """A signal asked it to stop; what was done is saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
