"""Which kind of session a child gets: on the processor, or on the device where the settings say so."""

from contextlib import AbstractContextManager, nullcontext

from sandbox.jail import Kind
from sandbox.sessions import Session
from sandbox.settings import Settings
from sandbox.workfolder import WorkFolder


def open_session(kind: Kind, folder: WorkFolder, settings: Settings) -> Session:
    """Start a child. A builder needs no device: what it compiles with runs on the processor."""
    if kind == "builder" or not settings.gpu:
        return Session(kind, folder, settings)
    from sandbox.gpu.device import device_of
    from sandbox.gpu.session import GpuSession

    return GpuSession(kind, folder, settings, device_of(settings))


def device_held(settings: Settings) -> AbstractContextManager[None]:
    """Within it no other judge of this machine times anything on the device; nothing where the settings have none."""
    if not settings.gpu:
        return nullcontext()
    from sandbox.gpu.device import device_of

    return device_of(settings).hold()


def architecture(settings: Settings) -> str:
    """Of the device, as `9.0`; empty where the settings have none."""
    if not settings.gpu:
        return ""
    from sandbox.gpu.device import device_of

    return device_of(settings).architecture
