"""Downloads files: interrupted downloads are resumed, failed ones retried, complete ones verified."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pfl_fast import __version__
from pfl_fast.errors import DataError

CHUNK = 1 << 18
OnProgress = Callable[[int, int | None], None]


class _TemporaryError(Exception):
    """A failure after which the download may be resumed."""


class _MirrorError(Exception):
    """A failure of this address; another one may work."""


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows no redirection from https to another scheme."""

    def redirect_request(
        self, request: urllib.request.Request, file: Any, code: int, message: str, headers: Any, url: str
    ) -> urllib.request.Request | None:
        if request.type == "https" and not url.startswith("https://"):
            raise urllib.error.URLError(f"it redirects from https to {url}")
        return super().redirect_request(request, file, code, message, headers, url)


_OPENER = urllib.request.build_opener(_NoDowngrade)


def fetch(
    urls: str | Sequence[str],
    target: Path,
    *,
    checksum: str | None,
    limit: int | None = None,
    progress: OnProgress | None = None,
    tries: int = 4,
    wait: float = 0.5,
    timeout: float = 30.0,
) -> Path:
    """Downloads a file to ``target``, unless it exists.

    Bytes are written to ``<target>.part``, which a later call continues. Only a complete file with the right checksum
    is renamed to ``target``.

    Args:
        urls: address of the file, or several addresses, tried in order.
        target: file to write; its folders are made.
        checksum: ``"md5:..."`` or ``"sha256:..."``; None if none is published.
        limit: number of bytes after which the download is refused. Default: any number.
        progress: called with the number of bytes received and in total (None if unknown).
        tries: attempts at each address; attempts that received bytes do not count.
        wait: seconds before the second attempt, doubled before each further one.
        timeout: seconds without data after which an attempt fails.

    Raises:
        DataError: naming the failure of each address.
    """
    if target.is_file():
        return target
    part = target.with_name(target.name + ".part")
    addresses = [urls] if isinstance(urls, str) else list(urls)
    if not addresses or not all(url.startswith(("http://", "https://")) for url in addresses):
        raise ValueError(f"urls must be addresses that begin with http:// or https://, not {urls!r}")
    problems = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in addresses:
            try:
                continued = _size(part) > 0
                _download(url, part, limit, progress, tries, wait, timeout)
                if continued and checksum and file_checksum(part, checksum.split(":")[0]) != checksum:
                    # The .part file of an earlier call belonged to another file.
                    part.unlink()
                    _download(url, part, limit, progress, tries, wait, timeout)
                _verify(part, checksum)
                return part.replace(target)
            except _MirrorError as error:
                problems.append(f"{url}: {error}")
    except OSError as error:
        raise DataError(_disk_problem(error, target)) from None
    raise DataError(f"cannot download {target.name}: {'; '.join(problems)}. Try again later, or place it at {target}")


def _download(
    url: str, part: Path, limit: int | None, progress: OnProgress | None, tries: int, wait: float, timeout: float
) -> None:
    left = tries
    while True:
        before = _size(part)
        try:
            _attempt(url, part, limit, progress, timeout)
            return
        except _TemporaryError as error:
            left = tries - 1 if _size(part) > before else left - 1
            if left <= 0:
                raise _MirrorError(f"{error} (after {tries} tries)") from None
            time.sleep(wait * 2 ** (tries - 1 - left))


def _attempt(url: str, part: Path, limit: int | None, progress: OnProgress | None, timeout: float) -> None:
    """Downloads the rest of the file, or all of it if the server cannot resume."""
    have = _size(part)
    headers = {"User-Agent": f"pfl-fast/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = _OPENER.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            if error.headers.get("Content-Range", "").endswith(f"/{have}"):
                return
            part.unlink(missing_ok=True)
            raise _TemporaryError("the part downloaded before does not fit") from None
        error_class = _TemporaryError if error.code in (408, 425, 429) or error.code >= 500 else _MirrorError
        raise error_class(f"the server answers {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _TemporaryError(f"no connection ({getattr(error, 'reason', error)})") from None
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status == 206 and not resumed:
            part.unlink(missing_ok=True)
            raise _TemporaryError("the server sent another part of the file than requested")
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        if limit is not None and (total or 0) > limit:
            raise _MirrorError(f"the server announces {total} bytes; at most {limit} are expected")
        _save(response, part, start, total, limit, progress)


def _save(
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    total: int | None,
    limit: int | None,
    progress: OnProgress | None,
) -> None:
    done = start
    with part.open("ab" if start else "wb") as file:
        while True:
            try:
                chunk = response.read1(CHUNK)
            except (http.client.HTTPException, OSError) as error:
                raise _TemporaryError(f"the connection broke after {done} bytes ({error})") from None
            if not chunk:
                break
            done += len(chunk)
            if limit is not None and done > limit:
                part.unlink()
                raise _MirrorError(f"the server sent more than the {limit} bytes that are expected at most")
            file.write(chunk)
            if progress:
                progress(done, total)
        file.flush()
        if file.seekable() and part.is_file():
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _TemporaryError(f"the connection broke after {done} of {total} bytes")


def _verify(part: Path, checksum: str | None) -> None:
    """Deletes a downloaded file that is a web page, empty, or has the wrong checksum."""
    with part.open("rb") as file:
        beginning = file.read(64).lstrip().lower()
    if beginning.startswith((b"<!doctype", b"<html")):
        part.unlink()
        raise _MirrorError("the server sent a web page instead of the file")
    if not beginning:
        part.unlink()
        raise _MirrorError("the server sent an empty file")
    if checksum is None:
        return
    found = file_checksum(part, checksum.split(":")[0])
    if found != checksum:
        part.unlink()
        raise _MirrorError(f"the file has checksum {found} instead of {checksum}, and was deleted")


def file_checksum(file: Path, algorithm: str = "sha256") -> str:
    """Returns the checksum of a file as ``"<algorithm>:<hex digits>"``."""
    with file.open("rb") as opened:
        return f"{algorithm}:{hashlib.file_digest(opened, algorithm).hexdigest()}"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _disk_problem(error: OSError, target: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(target.parent).free / 1e9
        return (
            f"{target}: the disk is full ({free:.1f} GB free); make room, or choose another data folder, and try again"
        )
    return f"{target}: cannot be written ({error.strerror or error}); choose another data folder"
