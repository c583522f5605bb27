"""Writing a file so that a reader sees the old text or the new one, never a part."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's text, in UTF-8; on disk when this returns. Raises `OSError` and leaves no scrap behind."""
    scrap = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(scrap, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scrap.replace(path)
    except BaseException:
        scrap.unlink(missing_ok=True)
        raise
