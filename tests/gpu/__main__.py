"""The GPU tests spread over all devices of this machine: `python -m tests.gpu --seconds 540 --out LOGS [PATH ...]`.

Each device has its own cores, home and temporary folder, and takes the next part of a file when it has done with one.
It ends with 1 where a test failed or the time did not suffice, and names each.
"""

import argparse
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kernelwright_child import driver

SLOW = ("test_programs.py", "test_languages.py")
LONGEST_FIRST = (*SLOW, "test_on_device.py", "test_diagnoses.py", "test_clock.py", "test_snippets.py", "test_waking.py")
TESTS_OF_A_PART, SLOW_TESTS_OF_A_PART = 8, 2
NOTHING_FOUND = 5
"""pytest's exit code where no test was chosen."""
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu")


def parts_of(paths):
    """The tests in parts, those of the longest files first."""
    listed = subprocess.run([*PYTEST, "--collect-only", "-q", *paths], capture_output=True, text=True, check=False)
    if listed.returncode not in (0, NOTHING_FOUND):
        sys.exit(f"the GPU tests cannot be collected:\n{listed.stdout}{listed.stderr}")
    by_file = {}
    for line in listed.stdout.splitlines():
        if "::" in line:
            by_file.setdefault(Path(line.partition("::")[0]).name, []).append(line)
    if not by_file:
        sys.exit(f"no GPU tests are found:\n{listed.stdout}{listed.stderr}")
    order = [*(name for name in LONGEST_FIRST if name in by_file), *sorted(by_file.keys() - set(LONGEST_FIRST))]
    for name in order:
        tests, size = by_file[name], SLOW_TESTS_OF_A_PART if name in SLOW else TESTS_OF_A_PART
        yield from (tests[at : at + size] for at in range(0, len(tests), size))


def run_part(device, cores, folder, tests, log, until):
    places = {"HOME": folder / "home", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {name: str(place) for name, place in places.items()}
    environment |= {"CUDA_VISIBLE_DEVICES": str(device)}
    command = ["taskset", "-c", ",".join(map(str, cores)), *PYTEST, "-v", "--durations=5", *tests]
    with log.open("wb") as output:
        try:
            left = max(1.0, until - time.monotonic())
            return subprocess.call(command, env=environment, stdout=output, stderr=output, timeout=left)
        except subprocess.TimeoutExpired:
            return None


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "gpu-tests")
    parser.add_argument("paths", nargs="*", default=["tests/gpu"])
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(driver.device_count())))
    devices = given.split(",")[: len(cores)]
    if driver.device_count() == 0:
        sys.exit("the driver sees no CUDA device")
    asked.out.mkdir(parents=True, exist_ok=True)
    until, wanted, ended = time.monotonic() + asked.seconds, queue.SimpleQueue(), {}
    parts = dict(enumerate(parts_of(asked.paths)))
    for number in parts:
        wanted.put(number)

    def serve(place, device):
        own = cores[place * len(cores) // len(devices) : (place + 1) * len(cores) // len(devices)]
        folder = Path(tempfile.mkdtemp(prefix=f"gpu{device}-"))
        folder.chmod(0o711)  # the jail's users pass through
        while time.monotonic() < until:
            try:
                number = wanted.get_nowait()
            except queue.Empty:
                return
            tests = parts[number]
            log = asked.out / f"{number:03}.log"
            code = run_part(device, own, folder, tests, log, until)
            said = log.read_text(errors="replace").splitlines()
            print(f"device {device}: {tests[0]} and {len(tests) - 1} more: {said[-1] if said else code}", flush=True)
            ended[number] = code, [line for line in said if "::" in line and ("FAILED" in line or "ERROR" in line)]

    threads = [threading.Thread(target=serve, args=one) for one in enumerate(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for line in (line for _, lines in ended.values() for line in lines):
        print(line)
    unfinished = [number for number in parts if ended.get(number, (None, []))[0] is None]
    for number in unfinished:
        print(f"not finished: {parts[number][0]} and {len(parts[number]) - 1} more")
    sys.exit(1 if unfinished or any(code not in (0, NOTHING_FOUND) for code, _ in ended.values()) else 0)


if __name__ == "__main__":
    main()
