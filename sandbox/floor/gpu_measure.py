"""What a CUDA device can do at most: `python -m kernelwright.sandbox.floor.gpu_measure` prints one JSON object.

Trusted code, run alone.

Only rates that many long calls confirm are measured; the best of all bursts counts. Products run on zeros too, which
take less power than random numbers and so run at a higher clock: a floor must hold for any values.
"""

import json
import subprocess
import sys
from collections.abc import Callable

import torch

from kernelwright.sandbox.machine.clocks import Clocks
from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.roofline import Level, Peaks
from kernelwright_child import driver

BUFFER_BYTES = 2**30
SIDE = 8192
BURSTS, CALLS = 8, 4
DTYPES = {
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
    "tf32": (torch.float32, True),
    "float32": (torch.float32, False),
    "float64": (torch.float64, False),
}
"""By kind of unit: dtype of the product, and whether TF32 is allowed."""
SLOW = ("float32", "float64")
"""Measured at half the side: an eighth of the time."""


def best_ms(run: Callable[[], object]) -> float:
    """Milliseconds of one call, on the device's events, in the best of several bursts."""
    run()
    times = []
    for _ in range(BURSTS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    least: float = min(times)
    return least


def memory() -> dict[str, float]:
    """Bytes a second of a copy, of reading alone and of writing alone."""
    count = BUFFER_BYTES // 4
    source, target = torch.ones(count, device="cuda"), torch.empty(count, device="cuda")
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "copy": (2, lambda: target.copy_(source)),
        "read": (1, lambda: torch.max(source)),
        "write": (1, lambda: target.fill_(1.5)),
    }
    return {name: 1e3 * share * BUFFER_BYTES / best_ms(run) for name, (share, run) in ways.items()}


def arithmetic() -> dict[str, float]:
    """Operations a second of large products, by kind of unit."""
    return {kind: _product(kind, *how) for kind, how in DTYPES.items()}


def _product(kind: str, dtype: torch.dtype, tf32: bool) -> float:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    side = SIDE // 2 if kind in SLOW else SIDE
    times = []
    for make in (torch.zeros, torch.randn):
        left, right = (make(side, side, device="cuda").to(dtype) for _ in range(2))
        times.append(best_ms(lambda left=left, right=right: left @ right))  # type: ignore[misc]
    return 2e3 * side**3 / min(times)


def main() -> None:
    print(json.dumps({"memory": memory(), "arithmetic": arithmetic(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()


MEASURE = 2
TIMEOUT_S = 300
BYTES_A_CLOCK = 128
"""What a multiprocessor can move to and from the caches in one clock, at most (both directions, compute capability 7.0
to 10.0: 64 bytes of L2 each way). Not measured: a kernel short enough for the L2 cache is mostly launch."""
UNKNOWN_MHZ = 3000
"""Taken where NVML does not tell: above every device's."""


def device_peaks(ordinal: int = 0, store: Store | None = None) -> Peaks:
    """The device's peaks; measures for some seconds where they are not remembered. Hold the device's lock.

    Raises `MachineError` where there is no device or the measuring fails.
    """
    store = store or Store("peaks")
    try:
        key = _key(ordinal)
        kept = store.get(key)
        if kept is None:
            kept = _measured(ordinal, key).model_dump(mode="json")
            store.put(key, kept)
    except driver.CudaError as error:
        raise MachineError(f"device {ordinal} could not be measured ({error}); see `kernelwright doctor`") from None
    return Peaks.model_validate(kept)


def known_peaks(ordinal: int = 0, store: Store | None = None) -> Peaks | None:
    """The device's peaks; None where they are not remembered, or there is no device. Measures nothing."""
    try:
        kept = (store or Store("peaks")).get(_key(ordinal))
    except driver.CudaError:
        return None
    return None if kept is None else Peaks.model_validate(kept)


def measured_again(ordinal: int = 0, store: Store | None = None) -> Peaks:
    """Measure once more and keep the better figures: what to do before a time is called impossible."""
    store = store or Store("peaks")
    key = _key(ordinal)
    raised = device_peaks(ordinal, store).raised(_measured(ordinal, key))
    store.put(key, raised.model_dump(mode="json"))
    return raised


def _key(ordinal: int) -> dict[str, object]:
    import torch

    clocks = Clocks(driver.device_uuid(ordinal))
    facts = clocks.facts()
    clocks.close()
    return {
        "measure": MEASURE,
        "uuid": driver.device_uuid(ordinal),
        "driver": facts.driver if facts else driver.driver_version(),
        "highest_sm_mhz": facts.highest_sm_mhz if facts else None,
        "torch": torch.__version__,
    }


def _measured(ordinal: int, key: dict[str, object]) -> Peaks:
    code = "from kernelwright.sandbox.floor.gpu_measure import main; main()"
    code = f"import torch; torch.cuda.set_device({ordinal}); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise MachineError(f"device {ordinal} could not be measured ({last}); end what else uses it")
    found = json.loads(done.stdout.splitlines()[-1])
    context = driver.Context(ordinal)
    try:
        name, l2_bytes = context.name, context.attribute("l2_bytes")
        units = context.attribute("multiprocessors")
    finally:
        context.close()
    clock = 1e6 * float(str(key["highest_sm_mhz"] or UNKNOWN_MHZ))
    levels = (
        Level(name="caches", inside_bytes=0, bytes_per_s=units * BYTES_A_CLOCK * clock),
        Level(name="memory", inside_bytes=l2_bytes, bytes_per_s=max(found["memory"].values())),
    )
    return Peaks(
        device=name,
        levels=levels,
        flops_per_s=found["arithmetic"],
        copy_bytes_per_s=found["memory"]["copy"],
        versions={"driver": str(key["driver"]), "torch": str(key["torch"])},
    )
