"""Files and folders are complete or absent."""

import pytest

from pfl_fast import atomic


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    target = tmp_path / "file"
    atomic.write_text(target, "old")
    with atomic.new_file(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "file"
    target.write_text("old")

    def write_half():
        with atomic.new_file(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_nothing_is_made_if_nothing_was_written(tmp_path):
    with pytest.raises(FileNotFoundError), atomic.new_file(tmp_path / "file"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "folder"
    with atomic.new_folder(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "file").write_text("new")
        assert not target.exists()
    assert (target / "sub" / "file").read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_is_replaced_only_on_request(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(OSError, match="not empty"), atomic.new_folder(target):
        pass
    assert [file.name for file in target.iterdir()] == ["old"]
    with atomic.new_folder(target, replace=True) as temporary:
        (temporary / "new").write_text("new")
    assert [file.name for file in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic.new_folder(tmp_path / "folder"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
