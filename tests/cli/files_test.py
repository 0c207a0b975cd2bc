"""Files and folders appear complete, or not at all."""

import os

import pytest

from late_phase_cli import files


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with files.replacing(path) as aside, open(aside, "w") as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file"]


def test_a_file_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.replacing(path) as aside, open(aside, "w") as file:
        file.write("new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_folder_appears_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder"
    with files.making_folder(path) as aside:
        with open(os.path.join(aside, "file"), "w") as file:
            file.write("text")
        assert not path.exists()
    assert (path / "file").read_text() == "text" and os.listdir(path.parent) == ["folder"]


def test_a_folder_that_fails_does_not_appear(tmp_path):
    with pytest.raises(ZeroDivisionError), files.making_folder(tmp_path / "folder"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_the_folder_of_a_faster_process_is_kept(tmp_path):
    path = tmp_path / "folder"
    with files.making_folder(path) as aside:
        with open(os.path.join(aside, "file"), "w") as file:
            file.write("slower")
        path.mkdir()
        (path / "file").write_text("faster")
    assert (path / "file").read_text() == "faster" and os.listdir(tmp_path) == ["folder"]


def test_a_file_in_the_folders_place_is_an_error(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(OSError), files.making_folder(path):
        path.write_text("a file")
    assert path.read_text() == "a file" and os.listdir(tmp_path) == ["folder"]
