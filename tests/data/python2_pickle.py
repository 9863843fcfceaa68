"""Write a pickle as Python 2's cPickle did, opcode by opcode: the official CIFAR files, in small.

Python 3 cannot write these: its own protocol 2 has text where Python 2 had strings of bytes.
"""

import struct

import numpy as np


class Python2Pickler:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.memoised = 0

    def dumps(self, value: object) -> bytes:
        self.parts = [b"\x80\x02"]
        self.save(value)
        return b"".join(self.parts) + b"."

    def memo(self) -> None:
        self.memoised += 1  # cPickle counts from 1
        self.parts.append(b"q%c" % self.memoised if self.memoised < 256 else b"r" + struct.pack("<I", self.memoised))

    def save(self, value: object) -> None:
        match value:
            case None:
                self.parts.append(b"N")
            case bool():
                self.parts.append(b"\x88" if value else b"\x89")
            case int() if 0 <= value < 256:
                self.parts.append(b"K%c" % value)
            case int() if 0 <= value < 65536:
                self.parts.append(b"M" + struct.pack("<H", value))
            case int():
                self.parts.append(b"J" + struct.pack("<i", value))
            case str():
                self.save_string(value.encode("latin-1"))
            case bytes():
                self.save_string(value)
            case list():
                self.parts.append(b"]")
                self.memo()
                for start in range(0, len(value), 1000):
                    self.parts.append(b"(")
                    for item in value[start : start + 1000]:
                        self.save(item)
                    self.parts.append(b"e")
            case dict():
                self.parts.append(b"}")
                self.memo()
                self.parts.append(b"(")
                for key, item in value.items():
                    self.save(key)
                    self.save(item)
                self.parts.append(b"u")
            case np.ndarray():
                self.save_array(value)
            case _:
                raise TypeError(type(value))

    def save_string(self, text: bytes) -> None:
        short = len(text) < 256
        self.parts.append((b"U%c" % len(text) if short else b"T" + struct.pack("<i", len(text))) + text)
        self.memo()

    def save_global(self, module: bytes, name: bytes) -> None:
        self.parts.append(b"c" + module + b"\n" + name + b"\n")
        self.memo()

    def save_array(self, array: np.ndarray) -> None:
        self.save_global(b"numpy.core.multiarray", b"_reconstruct")
        self.save_global(b"numpy", b"ndarray")
        self.parts.append(b"K\x00\x85")
        self.memo()
        self.save_string(b"b")
        self.parts.append(b"\x87")
        self.memo()
        self.parts.append(b"R")
        self.memo()
        self.parts.append(b"(K\x01")
        for side in array.shape:
            self.save(side)
        self.parts.append({1: b"\x85", 2: b"\x86", 3: b"\x87"}[array.ndim])
        self.memo()
        self.save_global(b"numpy", b"dtype")
        self.save_string(b"u1")
        self.parts.append(b"K\x00K\x01\x87")
        self.memo()
        self.parts.append(b"R")
        self.memo()
        self.parts.append(b"(K\x03")
        self.save_string(b"|")
        self.parts.append(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t")
        self.memo()
        self.parts.append(b"b")
        columns_first = array.flags.f_contiguous and not array.flags.c_contiguous
        self.save(bool(columns_first))
        self.save_string(array.tobytes("F" if columns_first else "C"))
        self.parts.append(b"t")
        self.memo()
        self.parts.append(b"b")


def python2_dumps(value: object) -> bytes:
    return Python2Pickler().dumps(value)
