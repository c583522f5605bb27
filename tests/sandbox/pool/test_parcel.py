"""Builds as bytes: what is carried to another machine's store, and what is refused there."""

import io
import json
import tarfile

import pytest

from kernelwright.sandbox.build import BuildStore
from kernelwright.sandbox.pool.ray import is_kept, pack, unpack
from kernelwright.sandbox.storage import VARIABLE

DIGEST = "a" * 64


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Goes to the store of one machine or the other."""

    def at(machine):
        monkeypatch.setenv(VARIABLE, str(tmp_path / machine))

    return at


@pytest.fixture
def packed(tmp_path, stores):
    stores("one")
    build = tmp_path / "build"
    build.mkdir()
    (build / "built.json").write_text(json.dumps({"call": {"path": "module.so", "module": "module"}}))
    (build / "module.so").write_bytes(bytes(range(256)))
    assert BuildStore().keep(DIGEST, build)
    return pack(DIGEST)


def test_a_build_is_the_same_in_the_other_store(packed, stores, tmp_path):
    stores("two")
    assert not is_kept(DIGEST)
    assert unpack(DIGEST, packed)
    (tmp_path / "out").mkdir()
    assert is_kept(DIGEST) and BuildStore().restore(DIGEST, tmp_path / "out")
    assert (tmp_path / "out" / "module.so").read_bytes() == bytes(range(256))


def test_what_is_not_in_the_store_is_not_packed(stores):
    stores("empty")
    assert pack(DIGEST) is None


def archive(name, kind=tarfile.REGTYPE, link=""):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        made.addfile(member, io.BytesIO(b""))
    return packed.getvalue()


@pytest.mark.parametrize(
    "bad",
    [
        archive("../outside"),
        archive("link", tarfile.SYMTYPE, "/etc/passwd"),
        archive("hard", tarfile.LNKTYPE, "/etc/passwd"),
        archive("pipe", tarfile.FIFOTYPE),
        b"no archive at all",
        b"",
    ],
    ids=["outside", "link", "hard link", "pipe", "noise", "nothing"],
)
def test_anything_but_plain_files_inside_is_refused(bad, stores, tmp_path):
    stores("two")
    assert not unpack(DIGEST, bad)
    assert not is_kept(DIGEST)
    assert not (tmp_path / "outside").exists()
