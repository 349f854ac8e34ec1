import hashlib
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pfl_fast.data.download import _NoDowngrade, fetch, file_checksum
from pfl_fast.data.progress import shown
from pfl_fast.errors import DataError
from tests.data.bad_server import CONTENT

MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "new folder" / "data.bin"


def get(urls, target, checksum=MD5, **more):
    return fetch(urls, target, checksum=checksum, wait=0.001, **more)


def files_next_to(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_a_file_is_downloaded_once(server, target):
    seen = []
    assert get(server.url, target, progress=lambda *now: seen.append(now)) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    get(server.url, target)
    assert len(server.requests) == 1
    assert files_next_to(target) == ["data.bin"]


def test_a_cut_connection_is_resumed(server, target):
    server.faults = ("cut", "cut", "cut", "cut", "cut", "cut")
    get(server.url, target, tries=2)
    assert target.read_bytes() == CONTENT
    assert server.requests[0] is None
    assert server.requests[1] == f"bytes={len(CONTENT) // 2}-"
    assert len(server.requests) == 7


def test_a_cut_without_content_length_is_noticed_by_the_checksum(server, target):
    server.length, server.faults = False, ("cut",)
    with pytest.raises(DataError, match=r"data\.bin.*instead of md5:.*deleted"):
        get(server.url, target)
    assert files_next_to(target) == []


@pytest.mark.parametrize("length", [True, False])
def test_a_download_beyond_its_limit_is_refused_and_deleted(server, target, length):
    server.length = length
    with pytest.raises(DataError, match=f"{len(CONTENT) - 1}.* expected"):
        get(server.url, target, limit=len(CONTENT) - 1)
    assert files_next_to(target) == []
    get(server.url, target, limit=len(CONTENT))


def test_a_redirection_from_https_to_http_is_not_followed():
    follow = _NoDowngrade().redirect_request
    request = urllib.request.Request("https://a/b")
    with pytest.raises(urllib.error.URLError, match="redirects from https to http://c/d"):
        follow(request, None, 301, "moved", {}, "http://c/d")
    assert follow(request, None, 301, "moved", {}, "https://c/d").full_url == "https://c/d"


def test_no_content_length(server, target):
    server.length = False
    seen = []
    get(server.url, target, progress=lambda *now: seen.append(now))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), None)


def test_a_server_that_ignores_ranges_sends_the_whole_file(server, target):
    server.ranges, server.faults = False, ("cut",)
    get(server.url, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [1, 1009, len(CONTENT)])
def test_a_part_file_is_continued(server, target, size):
    target.parent.mkdir()
    target.with_name("data.bin.part").write_bytes(CONTENT[:size])
    get(server.url, target)
    assert target.read_bytes() == CONTENT
    assert server.requests == [f"bytes={size}-"]


def test_a_connection_cut_between_chunks_is_resumed(server, target):
    server.faults = ("chunks", "chunks")
    get(server.url, target)
    assert target.read_bytes() == CONTENT
    assert server.requests[1] == f"bytes={len(CONTENT) // 2}-"


def test_a_wrong_range_restarts_the_download(server, target):
    server.faults = ("cut", "other part")
    get(server.url, target, None)
    assert target.read_bytes() == CONTENT
    assert server.requests[2] is None


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://host/file", "", []])
def test_only_http(target, url):
    with pytest.raises(ValueError, match="http://"):
        get(url, target)


def test_a_part_file_that_is_too_long_is_discarded(server, target):
    target.parent.mkdir()
    target.with_name("data.bin.part").write_bytes(CONTENT + b"more")
    get(server.url, target)
    assert target.read_bytes() == CONTENT


def test_a_part_file_of_another_file_is_discarded(server, target):
    target.parent.mkdir()
    target.with_name("data.bin.part").write_bytes(b"something else")
    get(server.url, target)
    assert target.read_bytes() == CONTENT
    assert server.requests == ["bytes=14-", None]


@pytest.mark.parametrize(
    ("content", "checksum", "message"),
    [
        (b"garbage" * 11, MD5, f"checksum md5:.* instead of {MD5}"),
        (b"garbage", "sha256:" + "0" * 64, "checksum sha256:"),
        (b" <!DOCTYPE html><p>Sign in", None, "a web page instead"),
        (b"<HTML>quota exceeded", None, "a web page instead"),
        (b"", None, "an empty file"),
    ],
)
def test_wrong_files_are_deleted(server, target, content, checksum, message):
    server.content = content
    with pytest.raises(DataError, match=message):
        get(server.url, target, checksum)
    assert files_next_to(target) == []


def test_files_without_a_checksum_are_accepted(server, target):
    assert get(server.url, target, None).read_bytes() == CONTENT


def test_not_found_is_final_and_names_the_remedy(server, target):
    server.faults = (404, 404)
    with pytest.raises(DataError, match=rf"{server.url}: the server answers 404.*place it at {target}"):
        get(server.url, target)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [503, 429, 500])
def test_a_busy_server_is_retried(server, target, code):
    server.faults = (code, code)
    get(server.url, target)
    assert len(server.requests) == 3


def test_a_busy_server_is_not_retried_for_ever(server, target):
    server.faults = (503,) * 50
    with pytest.raises(DataError, match=r"503.*after 3 tries"):
        get(server.url, target, tries=3)
    assert len(server.requests) == 3


def test_refused_connections(target):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/data.bin"
    with pytest.raises(DataError, match="no connection"):
        get(url, target, tries=2)


def test_the_next_mirror_is_tried(server, target):
    server.faults = (404,)
    get([server.url + "1", server.url + "2"], target)
    assert target.read_bytes() == CONTENT


def test_a_silent_server_times_out(target):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/data.bin"
        with pytest.raises(DataError, match="timed out"):
            get(url, target, tries=1, timeout=0.05)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(server, target):
    target.parent.mkdir()
    target.with_name("data.bin.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match="disk is full"):
        get(server.url, target)
    assert not target.exists()


def test_a_folder_that_cannot_be_made_is_an_error(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another data folder"):
        get(server.url, tmp_path / "file" / "data.bin")


def test_checksum_of_nothing(tmp_path):
    (tmp_path / "empty").touch()
    assert file_checksum(tmp_path / "empty", "md5") == "md5:d41d8cd98f00b204e9800998ecf8427e"


def test_progress_is_lines_where_there_is_no_terminal(server, target, capsys):
    with shown("data.bin") as progress:
        get(server.url, target, progress=progress)
        progress(7, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "data.bin: 100 % of 0.3 MB"
    assert all(line.startswith("data.bin: ") for line in lines)
    assert len(lines) <= 6
