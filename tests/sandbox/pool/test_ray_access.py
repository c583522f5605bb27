import socket
import subprocess
import sys

import pytest

from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.pool.ray import (
    MODE,
    TOKEN_PATH,
    checked_address,
    found_token,
    make_token,
    own_token,
    require_listener,
    require_token,
    session_folder,
    wants_token,
)
from kernelwright.sandbox.storage import VARIABLE


@pytest.fixture
def token(tmp_path):
    make_token(tmp_path / "token")
    return tmp_path / "token"


def test_a_new_token_is_long_and_its_owners_alone_and_stays_and_no_other_is_the_same(token):
    before = token.read_text()
    assert (token.stat().st_mode & 0o777, len(before)) == (0o600, 64)
    make_token(token)
    assert token.read_text() == before
    assert list(token.parent.iterdir()) == [token], "nothing is left beside it"
    make_token(token.with_name("other"))
    assert token.with_name("other").read_text() != before


def test_a_program_makes_itself_a_token_of_its_own_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    first = own_token({})
    assert first == own_token({}) and first.is_relative_to(tmp_path)
    assert first.parent.stat().st_mode & 0o777 == 0o700


def test_a_token_that_is_absent_or_that_others_can_read_is_refused_with_the_remedy(token):
    token.chmod(0o644)
    for path, said in ((token, "chmod 600"), (token.with_name("absent"), r"no token.* head:6379")):
        with pytest.raises(ExecutorError, match=said):
            found_token({TOKEN_PATH: str(path)}, "head:6379")


@pytest.mark.parametrize(("said", "wanted"), [({}, True), ({MODE: "token"}, True), ({MODE: "disabled"}, False)])
def test_authentication_is_on_unless_it_was_turned_off_by_name(said, wanted):
    assert wants_token(said) == wanted


def test_ray_is_told_before_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    environment = {}
    require_token(environment, tmp_path / "token")
    assert environment == {MODE: "token", TOKEN_PATH: str(tmp_path / "token")}


def test_ray_that_was_imported_without_being_told_is_not_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(ExecutorError, match="RAY_AUTH_MODE=token"):
        require_token({}, None)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", ":6379", "head:port"])
def test_only_the_address_of_a_head_is_taken(address):
    with pytest.raises(ExecutorError, match="HOST:PORT"):
        checked_address(address)


def test_an_address_where_nothing_listens_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExecutorError, match=f"nothing answers at {address}"):
            require_listener(address)


def test_what_a_killed_driver_left_is_removed_and_what_a_living_one_has_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    living = session_folder()
    left = tmp_path / f"kwray-{gone.pid}-abc"
    left.mkdir()
    again = session_folder()
    assert living.exists() and again.exists()
    assert not left.exists()
    assert again.stat().st_mode & 0o777 == 0o700
