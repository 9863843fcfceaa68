"""Read CIFAR's pickles without unpickling: a stack machine that can build nothing but plain values.

`pickle.load` runs whatever a file tells it to, and an unpickler cut down to numpy's own constructors can still be
crashed by a damaged file. So the opcodes are walked one by one (`pickletools.genops` only splits the file up), the
few that CIFAR's files use are understood here, and any other is refused. Three callables are recognised by name and
imitated, never called: numpy's array and dtype constructors, and the encoder by which Python 3 stores bytes in
protocol 2.
"""

import enum
import math
import pickletools
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nofe.errors import UserError

MAX_FILE_BYTES = 256 << 20  # CIFAR-100's training file, the largest of them, has 148 MiB
MAX_OPCODES = 1_000_000  # the same file has some 200,000; each costs at most about 200 bytes of memory

PUSH_NUMBER = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
PUSH_TEXT = frozenset({"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"})
PUSH_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES"})
PUSH_ARGUMENT = PUSH_NUMBER | PUSH_TEXT | PUSH_BYTES
PUSH_CONSTANT: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLE_LENGTH = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_NEXT_MOVE = "delete it, so that it is downloaded again"


class _Named(enum.Enum):
    """What a pickle may name."""

    RECONSTRUCT = "array constructor"
    NDARRAY = "array type"
    DTYPE = "dtype constructor"
    ENCODE = "text to bytes"


NAMES = {
    "numpy.core.multiarray _reconstruct": _Named.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _Named.RECONSTRUCT,
    "numpy ndarray": _Named.NDARRAY,
    "numpy dtype": _Named.DTYPE,
    "_codecs encode": _Named.ENCODE,
}


class _Bytes8:
    """The dtype uint8, the only one here."""


class _Array:
    """An array between the opcode that makes it and the one that fills it."""

    def __init__(self) -> None:
        self.filled: NDArray[np.uint8] | None = None


class _RefusedError(ValueError):
    """The pickle asks for something that CIFAR's files do not hold."""


def read_plain_pickle(path: Path) -> dict[str, object]:
    """The dictionary pickled in a file: its values are numbers, texts, bytes, lists, or arrays of uint8.

    Python 2 made no difference between text and bytes, so keys of either kind come back as text.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UserError(f"{path}: {size:,} bytes, more than any file of CIFAR; {_NEXT_MOVE}")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    return parse_plain_pickle(raw, str(path))


def parse_plain_pickle(raw: bytes, source: str) -> dict[str, object]:
    """The same from bytes; `source` is what an error names."""
    try:
        value = _Machine().run(raw)
        if not isinstance(value, dict):
            raise _RefusedError("it does not hold a dictionary")
        return {key: _finished(item) for key, item in value.items()}
    except _RefusedError as error:
        raise UserError(f"{source}: not a file of CIFAR ({error}); {_NEXT_MOVE}") from error
    except (ValueError, LookupError) as error:
        # What genops and the stack raise at a file that ends early or had bytes changed.
        raise UserError(f"{source}: damaged or cut short; {_NEXT_MOVE}") from error


def _finished(item: object) -> object:
    match item:
        case _Array(filled=np.ndarray() as array):
            return array
        case _Array() | _Bytes8() | _Named():
            raise _RefusedError("a value is only half made")
    return item


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value
    raise _RefusedError("a key or name is not a text")


class _Machine:
    """Pickle's virtual machine, less everything that can run code. One machine reads one file."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stacks under each MARK still open
        self.memo: dict[int, object] = {}
        self.encoded_bytes = 0

    def run(self, raw: bytes) -> object:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
            name = opcode.name
            if name in PUSH_ARGUMENT:  # first, because almost all opcodes are this or a memo
                self.stack.append(argument)
            elif name in ("BINPUT", "LONG_BINPUT"):
                self.memo[_integer(argument)] = self.stack[-1]
            elif name == "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            elif name == "STOP":
                break
            else:
                self.step(name, argument)
            if count >= MAX_OPCODES:
                raise _RefusedError(f"more than {MAX_OPCODES:,} steps")
        return self.stack.pop()

    def step(self, name: str, argument: object) -> None:
        """Every opcode that is not a plain push, a memo or the end."""
        match name:
            case "PROTO" | "FRAME":
                pass  # the version says nothing that the opcodes do not; frames are a hint for readers of streams
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_DICT":
                self.stack.append({})
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                self.stack.append(PUSH_CONSTANT[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple(self.pop_many(TUPLE_LENGTH[name])))
            case "TUPLE":
                items = self.pop_to_mark()  # on its own line: it changes which stack `self.stack` is
                self.stack.append(tuple(items))
            case "APPEND":
                self.extend_list([self.stack.pop()])
            case "APPENDS":
                self.extend_list(self.pop_to_mark())
            case "SETITEM":
                self.update_dict(self.pop_many(2))
            case "SETITEMS":
                self.update_dict(self.pop_to_mark())
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[_integer(argument)])
            case "GLOBAL":
                self.stack.append(_named(argument))
            case "STACK_GLOBAL":
                self.stack.append(_named(" ".join(_text(part) for part in self.pop_many(2))))
            case "REDUCE":
                called, arguments = self.pop_many(2)
                self.stack.append(self.imitate_call(called, arguments))
            case "BUILD":
                state = self.stack.pop()
                self.set_state(self.stack[-1], state)
            case _:
                raise _RefusedError(f"opcode {name}")

    def pop_many(self, count: int) -> list[object]:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def pop_to_mark(self) -> list[object]:
        taken, self.stack = self.stack, self.below.pop()
        return taken

    def extend_list(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise _RefusedError("items for what is not a list")
        target.extend(items)

    def update_dict(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise _RefusedError("items for what is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_text(key)] = value

    def imitate_call(self, called: object, arguments: object) -> object:
        match called, arguments:
            case _Named.RECONSTRUCT, (_Named.NDARRAY, (0,), "b" | b"b"):
                return _Array()
            case _Named.DTYPE, ("u1", *_):
                return _Bytes8()
            case _Named.ENCODE, (str() as text, "latin1"):
                return self.encode(text)
        raise _RefusedError("it calls something with strange arguments")

    def set_state(self, target: object, state: object) -> None:
        match target, state:
            case _Bytes8(), tuple():
                pass  # version, byte order and the like: one byte has no order
            case _Array() as array, (_, tuple() as shape, _Bytes8(), bool() as columns_first, str() | bytes() as data):
                # What Python 2 stored as a string of bytes comes out of genops as Latin-1 text.
                buffer = self.encode(data) if isinstance(data, str) else data
                array.filled = _fill(shape, buffer, "F" if columns_first else "C")
            case _:
                raise _RefusedError("it fills something with strange contents")

    def encode(self, text: str) -> bytes:
        """Copies are counted: a small file could ask for a million of one long text."""
        self.encoded_bytes += len(text)
        if self.encoded_bytes > MAX_FILE_BYTES:
            raise _RefusedError("it unfolds to more than it should")
        return text.encode("latin-1")


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise _RefusedError("a size or number is not a whole one")
    return value


def _named(name: object) -> _Named:
    if not isinstance(name, str) or name not in NAMES:
        raise _RefusedError(f"it names {str(name)[:80]!r}")
    return NAMES[name]


def _fill(shape: tuple[object, ...], buffer: bytes, order: Literal["C", "F"]) -> NDArray[np.uint8]:
    sides = [_integer(side) for side in shape]
    if any(side <= 0 for side in sides) or math.prod(sides) != len(buffer):
        raise _RefusedError(f"an array's shape does not fit its {len(buffer):,} bytes")
    return np.frombuffer(buffer, dtype=np.uint8).reshape(sides, order=order)
