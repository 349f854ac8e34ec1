"""Damages files: bits, bytes, lengths and numbers, also inside of compressed files, whose checksums are made right."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import tarfile
import zipfile
import zlib

NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -(2**63))
DIGITS = (b"-1", b"0", b"1000000000000", b"9" * 30, b"1e400", b"nan", b"2147483648", b"1.5", b"")
PIECES = (b"\x00" * 64, b"\xff" * 64, b"2" * 99, b"(" * 99, b"]" * 99, b"l" * 50, b"h\x00" * 30, b"\x85" * 80, b"R")


def mutate(data: bytes, random_: random.Random) -> bytes:
    """Returns damaged data; inside of an archive in three of four cases."""
    if random_.random() < 0.75:
        try:
            inside = _mutate_inside(data, random_)
        except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, tarfile.TarError):
            inside = None
        if inside is not None:
            return inside
    for _ in range(random_.choice((1, 1, 1, 2, 4, 16))):
        data = _once(data, random_)
    return data


def _once(data: bytes, random_: random.Random) -> bytes:
    place = random_.randrange(len(data) + 1)
    if random_.random() < 0.3:  # headers are short
        place = min(place, random_.randrange(300))
    kind = random_.randrange(8)
    if kind == 0 and data:
        place = min(place, len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << random_.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data[:place] + data[place + random_.choice((1, 2, 4, 8, 64)) :]
    if kind == 3:
        end = place + random_.randrange(1, 65)
        return data[:end] + data[place:end] * random_.choice((1, 2, 50)) + data[end:]
    if kind == 4:
        size = random_.choice((1, 2, 4, 8))
        order = random_.choice(("little", "big"))
        number = (random_.choice(NUMBERS) % 256**size).to_bytes(size, order)
        return data[:place] + number + data[place + size :]
    if kind == 5:
        return _change_digits(data, random_)
    if kind == 6:
        return data[:place] + random_.choice(PIECES) + data[place:]
    return data[:place] + random_.randbytes(random_.randrange(1, 9)) + data[place + random_.randrange(9) :]


def _change_digits(data: bytes, random_: random.Random) -> bytes:
    places = [i for i in range(min(len(data), 4000)) if data[i : i + 1].isdigit()]
    if not places:
        return data
    begin = end = random_.choice(places)
    while data[end : end + 1].isdigit():
        end += 1
    return data[:begin] + random_.choice(DIGITS) + data[end:]


def _mutate_inside(data: bytes, random_: random.Random) -> bytes | None:
    if data.startswith(b"\x1f\x8b"):
        return gzip.compress(mutate(gzip.decompress(data), random_), 1)
    if data.startswith(b"BZh"):
        return bz2.compress(mutate(bz2.decompress(data), random_), 1)
    if data.startswith(b"PK"):
        return _mutate_zip(data, random_)
    if data[257:262] == b"ustar":
        return _mutate_tar(data, random_)
    if data[124:128] == b"\x00\x01IM" and data[128:132] == b"\x0f\x00\x00\x00":
        content = zlib.compress(mutate(zlib.decompress(data[136:]), random_), 1)
        return data[:132] + len(content).to_bytes(4, "little") + content
    return None


def _mutate_zip(data: bytes, random_: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    name = random_.choice(sorted(members))
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member, content in members.items():
            if member != name:
                archive.writestr(member, content)
            elif random_.random() < 0.9:
                archive.writestr(member, mutate(content, random_))
            elif random_.random() < 0.5:
                archive.writestr(random_.choice(("../", "/tmp/", "a/")) + member, content)
    return result.getvalue()


def _mutate_tar(data: bytes, random_: random.Random) -> bytes:
    result = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=result, mode="w") as new:
        members = [member for member in old if member.isfile()]
        chosen = random_.choice(members)
        for member in members:
            content = old.extractfile(member).read()
            if member is chosen:
                content = mutate(content, random_)
                member.type = random_.choice((member.type,) * 8 + (tarfile.SYMTYPE, tarfile.GNUTYPE_LONGNAME))
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return result.getvalue()
