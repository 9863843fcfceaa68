"""`nofe` and `python -m nofe`: run the command line, and turn what goes wrong into one line and an exit code."""

import errno
import logging
import os
import sys
from typing import Any

INTERRUPTED = 130
AGAIN = "run the same command again, a training that has begun with --resume"


def main() -> None:
    code = _run_command()
    ranks = sys.modules.get("nofe.training.ranks")  # loaded where a command may have needed it
    if ranks is not None:
        ranks.end_process_of_a_rank(code)
    sys.exit(code)


def _run_command() -> int:
    """What the command line asks for; the exit code."""
    # Before torch starts its threads. They wait for each other by spinning, and where another process has one of the
    # cores a step then takes many times as long; so short a spin costs nothing on idle cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler complains of GPUs that nobody has asked for

    from nofe.cli import app
    from nofe.errors import NofeError

    ours = logging.StreamHandler()  # for nofe alone: some libraries print their messages themselves
    ours.setFormatter(logging.Formatter("nofe: %(message)s"))
    ours.addFilter(_Once())
    logging.getLogger("nofe").addHandler(ours)
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="nofe", standalone_mode=False) or 0
        if code == INTERRUPTED:  # which is what Typer makes of a KeyboardInterrupt, without a word
            raise KeyboardInterrupt
        return int(code)
    except NofeError as error:
        return error.exit_code if error.told else _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail(f"interrupted; {AGAIN}", INTERRUPTED)
    except OSError as error:
        return _fail(f"{_told_by_the_system(error)}; see to it and {AGAIN}", 1)
    except Exception as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            advice = "train it with --no-compile, time it with --mode eager"
            return _fail(f"PyTorch's compiler failed on this network ({_reason(error)}); {advice}", 1)
        # Typer's own complaints about the command line; which module defines them differs between its versions.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nofe"
        message = _what_is_there_instead(error) or " ".join(error.format_message().split())
        return _fail(f"{message.rstrip('.')}; see {command} --help", getattr(error, "exit_code", 2))


def _what_is_there_instead(error: Any) -> str | None:
    """Of an option that the command does not have."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is None or option is None or not hasattr(error, "possibilities"):
        return None
    from nofe.cli.unknown import instead_of

    known = [name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    instead = instead_of(option, sys.argv[1:], known)
    return f"No such option: {option}; use {instead}" if instead else None


class _Once(logging.Filter):
    """Nothing is said twice, as by all runs of a sweep on the same images."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


def _told_by_the_system(error: OSError) -> str:
    """Which file cannot be used and why, or that the disk is full; any other error is raised again."""
    reason = (error.strerror or "").lower()
    if error.filename is not None:  # of a rename, the second is the file to be replaced
        return f"{error.filename2 or error.filename}: {reason}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return reason
    raise error


def _reason(error: Exception) -> str:
    """The compiler explains itself over a page, the reason somewhere in it."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    return (explained or lines or [type(error).__name__])[0]


def _fail(message: str, code: int) -> int:
    print(f"nofe: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
