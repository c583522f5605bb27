"""The hostile candidate that only looks, asks and pokes: it tries everything and reports what worked.

Each function is one line of docs/trust.md: its docstring is the wording there. It returns something true if the attack
worked, and anything false, or an `OSError`, if it was refused.
"""
# The candidate's code is as plain as an attacker's.
# ruff: noqa: PTH101, PTH104, PTH115, PTH116, PTH118, PTH208, PTH211

import ctypes
import inspect
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any, NamedTuple

AROUND: dict[str, Any] = {}
libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return True


def looked_into(pid):
    worked = []
    for name in ("environ", "maps", "mem"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                worked.append(name == "mem" or file.read(1))
        except OSError:
            continue
    return any(worked) or bool(os.readlink(f"/proc/{pid}/fd/0"))


def try_environment():
    """reading the judge's environment through /proc"""
    return any(Path(f"/proc/{pid}/environ").read_bytes() for pid in (AROUND["judge"], AROUND["bystander"]))


def try_memory_file():
    """reading or writing the judge's memory through /proc"""
    with open(f"/proc/{AROUND['judge']}/mem", "r+b", buffering=0) as file:
        file.seek(AROUND["address"])
        return file.read(8)


def try_memory_call():
    """reading the judge's memory with `process_vm_readv`"""
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_void_p * 2)(AROUND["address"], 8)
    return checked(libc.process_vm_readv(AROUND["judge"], here, 1, there, 1, 0))


def try_ptrace():
    """`ptrace` of the judge or of its own parent"""
    attach = 16
    return any(libc.ptrace(attach, pid, 0, 0) == 0 for pid in (AROUND["judge"], os.getppid() or 1))


def try_keeper_memory():
    """reading the supervisor's memory or descriptors"""
    return looked_into(os.getppid() or 1)


def try_zygote_memory():
    """reading the zygote's memory, environment or descriptors"""
    return any(looked_into(pid) for pid in AROUND["zygotes"])


def try_zygote_signal():
    """a signal to the zygote"""
    for pid in AROUND["zygotes"]:
        os.kill(pid, 0)
    return AROUND["zygotes"]


def try_other_child():
    """reading the memory or environment of another child, as the reference's"""
    return looked_into(AROUND["reference"])


def try_signal():
    """a signal to the judge or to another process of the user"""
    worked = []
    for pid in (AROUND["judge"], AROUND["bystander"]):
        try:
            os.kill(pid, 0)
            worked.append(pid)
        except OSError:
            continue
    return worked


def try_renice():
    """changing the priority or the limits of the judge"""
    try:
        os.setpriority(os.PRIO_PROCESS, AROUND["judge"], os.getpriority(os.PRIO_PROCESS, AROUND["judge"]))
        return True
    except OSError:
        old = ctypes.create_string_buffer(16)
        return checked(libc.prlimit(AROUND["judge"], 4, None, old))


def try_pin_judge():
    """moving the judge to other cores"""
    os.sched_setaffinity(AROUND["judge"], os.sched_getaffinity(AROUND["judge"]))
    return True


def try_pin_bystander():
    """moving another process of the user to other cores"""
    os.sched_setaffinity(AROUND["bystander"], os.sched_getaffinity(AROUND["bystander"]))
    return True


def try_processes():
    """seeing other processes and their command lines"""
    return Path(f"/proc/{AROUND['bystander']}/cmdline").read_bytes()


def try_tcp():
    """a TCP connection to a server on this machine"""
    return socket.create_connection(("127.0.0.1", AROUND["tcp"]), timeout=1)


def try_udp():
    """a UDP packet to a server on this machine"""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", AROUND["udp"]))


def try_abstract():
    """a connection to an abstract unix socket"""
    return socket.socket(socket.AF_UNIX).connect("\0" + AROUND["abstract"]) is None


def try_named():
    """a connection to a unix socket in the file system, as of a session bus or a container engine"""
    return socket.socket(socket.AF_UNIX).connect(AROUND["named"]) is None


def try_named_packet():
    """a packet to a unix socket in the file system"""
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", AROUND["named_packet"])


def try_home():
    """reading the home and its SSH keys"""
    return Path(AROUND["key"]).read_bytes()


def try_home_names():
    """seeing the names of the files in the home"""
    return os.listdir(AROUND["home"])


def try_home_facts():
    """seeing size and date of a file whose name is known"""
    return os.stat(AROUND["key"])


def try_home_mode():
    """changing permissions of the user's files"""
    os.chmod(AROUND["key"], 0o600)
    return True


def try_checkout():
    """reading the checkout, its references or its recorded answers"""
    found = list(Path(AROUND["checkout"], "problems", "catalog").glob("*/*.py"))
    return [path.read_bytes() for path in found] or Path(AROUND["checkout"], "pyproject.toml").read_bytes()


def try_import():
    """importing the package with the references"""
    try:
        from kernelwright.problems import catalog
    except ImportError:
        return False
    return list(catalog.__path__) and os.listdir(next(iter(catalog.__path__)))


def try_shadow():
    """reading /etc/shadow, or another user's work folder"""
    for path in ("/etc/shadow", AROUND["other_folder"]):
        try:
            return Path(path).read_bytes()
        except OSError:
            continue
    return False


def try_write_outside():
    """writing outside the work folder"""
    worked = []
    for folder in (AROUND["outside"], AROUND["checkout"], "/usr/lib", "/etc", "/var/tmp", "/dev", "/"):
        try:
            Path(folder, AROUND["mark"]).write_text("x")
            worked.append(folder)
        except OSError:
            continue
    return worked


def try_truncate():
    """emptying a file that can be read"""
    path = os.environ["HOME"] + "/../candidate.py"
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    return os.stat(path).st_size == 0


def try_sitecustomize():
    """poisoning `sitecustomize` or a `.pth` file"""
    worked = []
    for folder in AROUND["site"]:
        for name in ("sitecustomize.py", AROUND["mark"] + ".pth"):
            try:
                with open(f"{folder}/{name}", "a") as file:
                    file.write("import kw_hostile\n")
                worked.append(folder)
            except OSError:
                continue
    return worked


def try_caches():
    """poisoning ~/.cache/torch_extensions or another build cache of the user"""
    Path(AROUND["home"], ".cache", "torch_extensions", "kept.so").write_bytes(b"poison")
    return True


def try_own_build():
    """changing, in a run, what was built for it, or the candidate's source"""
    home = os.environ["TORCH_EXTENSIONS_DIR"]
    worked = []
    for path in (f"{home}/x", f"{home}/../candidate.py", f"{home}/../x"):
        try:
            Path(path).write_text("x")
            worked.append(path)
        except OSError:
            continue
    return worked


def try_replace_build():
    """putting a link in place of the build folder"""
    home = os.environ["TORCH_EXTENSIONS_DIR"]
    os.rename(home, home + "-old")
    os.symlink("/etc", home)
    return True


def try_user_namespace():
    """a new user namespace, by `unshare` or by `clone`"""
    new_user, child_ends = 0x10000000, 17
    if libc.unshare(new_user) == 0:
        return True
    pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, new_user | child_ends, None, None, None, None)
    if pid == 0:
        os._exit(0)
    return pid > 0


def try_kernel():
    """mounting, BPF, performance events, keys, `userfaultfd`, `io_uring`, modules"""
    worked = []
    x86 = {"mount": 165, "bpf": 321, "perf": 298, "keyctl": 250, "userfaultfd": 323, "module": 175, "io_uring": 425}
    arm = {"mount": 40, "bpf": 280, "perf": 241, "keyctl": 219, "userfaultfd": 282, "module": 105, "io_uring": 425}
    for name, number in (x86 if os.uname().machine == "x86_64" else arm).items():
        libc.syscall(number, 0, 0, 0, 0, 0)
        if ctypes.get_errno() != 1:
            worked.append(name)
    return worked


def try_timers():
    """a timer that goes on while its process is stopped, by `timer_create` or `timerfd_create`"""
    made = ctypes.c_void_p()
    return libc.timer_create(1, None, ctypes.byref(made)) == 0 or checked(libc.timerfd_create(1, 0))


def try_settings_of_the_kernel():
    """changing kernel settings below /proc/sys"""
    with open("/proc/sys/kernel/core_pattern", "r+") as file:
        return file.write(file.read())


def try_devices():
    """opening a disk or another device"""
    worked = []
    for folder, _, names in os.walk("/dev"):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISBLK(os.lstat(path).st_mode) or name in ("mem", "kmsg", "fuse", "kvm"):
                try:
                    os.close(os.open(path, os.O_RDONLY))
                    worked.append(path)
                except OSError:
                    continue
    return worked


def try_privileges():
    """having any capability, or getting one from a program that gives it"""
    facts = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts["CapEff"], 16) & ~AROUND["granted"] or facts["NoNewPrivs"].strip() != "1"


def try_key_in_environment():
    """reading a key from its own environment"""
    return "sk-planted" in json.dumps(dict(os.environ))


def try_descriptors():
    """finding a descriptor beside standard streams, channel and shared memory"""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append((int(fd), os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            continue
    # CUDA's library makes an event counter and pipes to itself while torch is imported: both ends are here.
    ends = [path for _, path in found]
    own = [path for path in ends if path.startswith("pipe:") and ends.count(path) > 1]
    own += ["anon_inode:[eventfd]"]
    others = [path for fd, path in found if fd > 2 and not path.startswith("/memfd:lent") and path not in own]
    return len(others) != 1 or not others[0].startswith("socket:")


def try_forged_death_signal():
    """outliving the supervisor, or closing itself to the judge"""
    if AROUND["namespaces"]:
        return False
    return libc.prctl(1, 0, 0, 0, 0) == 0 or libc.prctl(4, 0, 0, 0, 0) == 0


def leave_things_behind():
    """Not an attack that reports: the test looks for what is left."""
    key, mark = AROUND["segment"], AROUND["mark"]
    attempts = (
        lambda: libc.shmget(key, 4096, 0o1666),
        lambda: libc.semget(key, 1, 0o1666),
        lambda: libc.msgget(key, 0o1666),
        lambda: libc.mq_open(f"/{mark}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None),
        lambda: socket.socket(socket.AF_UNIX).bind(f"\0{mark}-left"),
        lambda: Path("/dev/shm", mark).write_text("x"),
        lambda: Path("/tmp", mark).write_text("x"),
        lambda: Path("/var/tmp", mark).write_text("x"),
        lambda: Path(AROUND["home"], ".bashrc").write_text("x"),
    )
    for attempt in attempts:
        try:
            attempt()
        except (OSError, AttributeError):
            continue


class Snooping(NamedTuple):
    """The candidate's text: functions before its class, and the body of its forward."""

    source: str
    call: str


def told(log: str) -> str:
    """The report in the log of its verdict, as JSON; a verdict's reason may be cut."""
    _, found, text = log.rpartition("REPORT ")
    assert found, log
    return text.splitlines()[0]


def lines() -> dict[str, str]:
    """Name of each attempt, and its wording in docs/trust.md."""
    found = {name: value for name, value in globals().items() if name.startswith("try_")}
    return {name.removeprefix("try_"): inspect.getdoc(function) or "" for name, function in found.items()}


def _source() -> str:
    functions = [checked, looked_into, *(globals()[f"try_{name}"] for name in lines()), leave_things_behind]
    head = "from pathlib import Path\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    return head + "\n\n".join(inspect.getsource(function) for function in functions)


SNOOPING = Snooping(
    _source(),
    """
    worked, tried = [], 0
    for name, function in list(globals().items()):
        if name.startswith("try_") and name[4:] not in AROUND["spared"]:
            tried += 1
            try:
                if function(): worked.append(name[4:])
            except OSError:
                pass
            except BaseException as error:
                worked.append(f"{name[4:]} raised {error!r}")
    leave_things_behind()
    raise RuntimeError("REPORT " + json.dumps({"worked": worked, "tried": tried}))
    """,
)
