"""What a child prints, bounded: head and tail are kept, the middle is counted and dropped."""

import os
import threading

KEPT_BYTES = 64 * 1024
"""How much of the head, and how much of the tail, is kept."""


class Capture:
    """Drains a pipe in a thread, so that a flood neither blocks the child nor fills memory."""

    def __init__(self) -> None:
        self._read, self.write_fd = os.pipe()
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def start(self) -> None:
        """Begin to drain; call after the child has its copy of `write_fd`, which is closed here."""
        os.close(self.write_fd)
        self._thread.start()

    def _drain(self) -> None:
        while chunk := os.read(self._read, 65536):
            room = KEPT_BYTES - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:] if room > 0 else chunk
            excess = len(self._tail) - KEPT_BYTES
            if excess > 0:
                del self._tail[:excess]
                self._dropped += excess
        os.close(self._read)

    def so_far(self) -> str:
        """The last of what came until now, on one line: why a child did not start."""
        return " ".join((bytes(self._head) + bytes(self._tail)).decode(errors="replace").split())[-400:]

    def text(self) -> str:
        """All that was kept; call after the child has ended."""
        self._thread.join(timeout=1)
        middle = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace")
