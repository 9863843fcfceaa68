"""The reader understands CIFAR's pickles and nothing that could do harm."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python2_pickle import python2_dumps

from nofe.data import plain_pickle
from nofe.data.plain_pickle import parse_plain_pickle, read_plain_pickle
from nofe.errors import UserError

SMALL = {
    "filenames": ["a.png", "b.png"],
    "batch_label": "training batch 1 of 1",
    "fine_labels": [3, 300],
    "data": np.arange(8, dtype=np.uint8).reshape(2, 4),
}


def with_bytes_keys(value: dict[str, object]) -> dict[bytes, object]:
    return {key.encode(): item for key, item in value.items()}


WRITERS = {
    "python 2": python2_dumps,
    "protocol 2": lambda value: pickle.dumps(value, protocol=2),
    "protocol 2, bytes keys": lambda value: pickle.dumps(with_bytes_keys(value), protocol=2),
    "protocol 3": lambda value: pickle.dumps(value, protocol=3),
    "protocol 4": lambda value: pickle.dumps(value, protocol=4),
    "protocol 4, bytes keys": lambda value: pickle.dumps(with_bytes_keys(value), protocol=4),
}


def test_the_python_2_writer_of_these_tests_writes_pickles() -> None:
    loaded = pickle.loads(python2_dumps(SMALL), encoding="latin-1")
    np.testing.assert_array_equal(loaded.pop("data"), SMALL["data"])
    assert loaded == {key: item for key, item in SMALL.items() if key != "data"}


@pytest.mark.parametrize("writer", WRITERS)
def test_reads_back_what_was_written(writer: str) -> None:
    content = parse_plain_pickle(WRITERS[writer](SMALL), "small")
    array = content.pop("data")
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, SMALL["data"])
    assert array.dtype == np.uint8
    assert content == {key: item for key, item in SMALL.items() if key != "data"}


@pytest.mark.parametrize("writer", ["python 2", "protocol 2", "protocol 4"])
def test_arrays_stored_by_columns_are_not_scrambled(writer: str) -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    content = parse_plain_pickle(WRITERS[writer]({"data": array}), "small")
    np.testing.assert_array_equal(content["data"], [[0, 1, 2], [3, 4, 5]])


@given(
    st.dictionaries(
        st.text(max_size=5), st.lists(st.integers(-(2**31), 2**31 - 1) | st.text(max_size=300) | st.none(), max_size=5)
    ),
    st.integers(2, 4),
)
def test_any_plain_dictionary_survives(value: dict[str, list[object]], protocol: int) -> None:
    assert parse_plain_pickle(pickle.dumps(value, protocol=protocol), "any") == value


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_never_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "was-here"
    raw = pickle.dumps({"data": Attack(target)}, protocol=protocol)
    with pytest.raises(UserError, match="not a file of CIFAR"):
        parse_plain_pickle(raw, "attack")
    assert not target.exists()
    pickle.loads(raw)
    assert target.exists(), "the attack of this test would not have worked anyway"


def stack_global(module: bytes, name: bytes) -> bytes:
    return b"U%c" % len(module) + module + b"U%c" % len(name) + name + b"\x93"


HOSTILE = {
    "another function of numpy": b"\x80\x02}U\x04datacnumpy\nfromfile\nU\x0b/etc/passwd\x85Rs.",
    "an allowed name used as value": b"\x80\x02}U\x04datacnumpy\ndtype\ns.",
    "an array that is never filled": (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rs."
    ),
    "an array of objects": pickle.dumps({"data": np.array([None, {}])}, protocol=2),
    "an array of floats": pickle.dumps({"data": np.zeros(3)}, protocol=4),
    "an array of signed bytes": pickle.dumps({"data": np.zeros(3, np.int8)}, protocol=4),
    "dotted names": b"\x80\x04}U\x04data" + stack_global(b"numpy", b"dtype.__class__") + b"s.",
    "by extension code": b"\x80\x02}U\x04data\x82\x01s.",
    "by persistent id": b"\x80\x02}U\x04dataU\x01aQs.",
    "a call of text": b"\x80\x02}U\x04dataU\x02os)Rs.",
    "a list": b"\x80\x02].",
    "nothing": b"",
    "no stop": b"\x80\x02}",
    "an empty stack": b"\x80\x02.",
    "a mark too few": b"\x80\x02}u.",
    "unknown memo": b"\x80\x02h\x07.",
    "items for a text": b"\x80\x02U\x01aK\x01a.",
    "a number as a key": b"\x80\x02}K\x01K\x01s.",
    "a list as a key": b"\x80\x02}]K\x01s.",
    "half a pair": b"\x80\x02}(U\x01au.",
    "bytes beyond the end": b"\x80\x02}U\x04dataB\xff\xff\xff\xffabcs.",
    "text of negative size": b"\x80\x02}U\x04dataT\xff\xff\xff\xffabcs.",
    "bytes beyond memory": b"\x80\x04}U\x04data\x8e" + struct.pack("<Q", 2**62) + b"abcs.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="delete it"):
        parse_plain_pickle(HOSTILE[name], name)


@pytest.mark.parametrize("shape", [(2, 5), (2**31 - 1, 2**31 - 1), (-2, -4), (0, 4)])
def test_claimed_shapes_must_fit_the_bytes(shape: tuple[int, int]) -> None:
    def signed(side: int) -> bytes:
        return b"J" + struct.pack("<i", side)

    raw = python2_dumps({"data": np.arange(8, dtype=np.uint8).reshape(2, 4)})
    claimed = raw.replace(b"K\x02K\x04\x86", signed(shape[0]) + signed(shape[1]) + b"\x86")
    assert claimed != raw
    with pytest.raises(UserError, match="shape does not fit"):
        parse_plain_pickle(claimed, "shape")


def test_steps_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 1000)
    filled = b"\x80\x02}U\x01k](" + b"N" * 900 + b"es."
    assert parse_plain_pickle(filled, "short") == {"k": [None] * 900}
    with pytest.raises(UserError, match="more than 1,000 steps"):
        parse_plain_pickle(b"\x80\x02}" + b"]" * 1100 + b".", "long")


def test_copies_of_a_long_text_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_FILE_BYTES", 10_000)
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x01"
    encode = b"c_codecs\nencode\nh\x01U\x06latin1\x86R"
    parse_plain_pickle(b"\x80\x02}U\x01k(" + text + encode * 10 + b"ts.", "few")
    with pytest.raises(UserError, match="unfolds"):
        parse_plain_pickle(b"\x80\x02}U\x01k(" + text + encode * 11 + b"ts.", "many")


def test_files_larger_than_cifars_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train"
    with path.open("wb") as file:
        file.truncate(plain_pickle.MAX_FILE_BYTES + 1)  # takes no room on the disk
    with pytest.raises(UserError, match="more than any file of CIFAR"):
        read_plain_pickle(path)


def test_a_file_that_cannot_be_opened_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_plain_pickle(tmp_path)


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, int | str | bytes | list | tuple | dict | np.ndarray)


def parses_or_is_refused(raw: bytes) -> bool:
    """Whether it was refused. Any other exception, or anything but plain values, fails the test."""
    try:
        content = parse_plain_pickle(raw, "mutated")
    except UserError:
        return True
    assert all(is_plain(value) for value in content.values())
    return False


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # from genops, at opcodes that are then refused
@pytest.mark.parametrize("writer", ["python 2", "protocol 2", "protocol 4"])
def test_changed_bytes_never_crash_it(writer: str) -> None:
    raw = WRITERS[writer](SMALL)
    rng = np.random.default_rng(0)
    refused = 0
    for position in range(len(raw)):
        for byte in rng.choice(256, size=12, replace=False):
            refused += parses_or_is_refused(raw[:position] + bytes([byte]) + raw[position + 1 :])
    assert refused > len(raw), "changes hardly ever mattered: is the file read at all?"


@pytest.mark.parametrize("writer", WRITERS)
def test_every_truncation_is_noticed(writer: str) -> None:
    raw = WRITERS[writer](SMALL)
    for end in range(len(raw)):
        assert parses_or_is_refused(raw[:end]), end


# The opcodes that are allowed, with short arguments: programs that get further than random bytes would.
WORDS = [b"K\x01", b"K\x00", b"N", b"\x88", b"]", b"}", b")", b"(", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e", b"s"]
WORDS += [b"u", b"R", b"b", b"q\x01", b"h\x01", b"\x94", b"U\x01b", b"U\x02u1", b"X\x01\x00\x00\x00k", b"C\x01b"]
WORDS += [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_programs_of_allowed_opcodes_never_crash_it(words: list[bytes]) -> None:
    parses_or_is_refused(b"\x80\x02}" + b"".join(words) + b".")
