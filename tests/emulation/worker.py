"""Runs emulated kernels under a sanitizer, without torch, with each tensor in a separate allocation."""

import ctypes
import json
import sys
from pathlib import Path


def main() -> None:
    request = json.load(sys.stdin)
    libc = ctypes.CDLL(None)
    libc.memalign.restype = ctypes.c_void_p
    library = ctypes.CDLL(request["library"])
    library.pfl_emulation_message.restype = ctypes.c_char_p
    addresses: dict[str, int] = {}
    keep = []

    def address_of(name: str, alignment: int) -> int:
        """Copies the tensor with its alignment into an allocation that ends at its last byte."""
        if name not in addresses:
            size = int(name.split(":")[1])
            addresses[name] = libc.memalign(ctypes.c_size_t(64), ctypes.c_size_t(alignment + size)) + alignment
            ctypes.memmove(addresses[name], Path(request["files"][name]).read_bytes(), size)
        return addresses[name]

    def value(word: object) -> int:
        if isinstance(word, dict):
            return address_of(word["tensor"], word["alignment"])
        if isinstance(word, list):
            array = (ctypes.c_int64 * max(1, len(word)))(*[value(w) for w in word])
            keep.append(array)
            return ctypes.addressof(array)
        return word or 0

    for call in request["calls"]:
        problem = (ctypes.c_int64 * len(call["words"]))(*[value(w) for w in call["words"]])
        library.pfl_emulation_schedule(ctypes.c_uint64(call["seed"]))
        code = getattr(library, call["function"])(ctypes.byref(problem), None)
        if code != 0:
            sys.exit(f"{call['function']} returned {code}: {library.pfl_emulation_message().decode()}")
    for name, address in addresses.items():
        Path(request["files"][name]).write_bytes(ctypes.string_at(address, int(name.split(":")[1])))


if __name__ == "__main__":
    main()
