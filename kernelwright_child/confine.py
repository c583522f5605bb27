"""The confinement that a child applies to itself before untrusted code runs: limits, user, landlock, call filter.

Standard library only. The order matters: limits and user first, while there are rights; then no new privileges; then
landlock and the filter, which both need that. A failed step ends the child: it never runs with fewer layers than
planned.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 38, 47
SIGKILL, AMBIENT_RAISE, CAPABILITIES, CAPABILITY_VERSION = 9, 2, 64, 0x20080522
READ_SEARCH = 2
"""CAP_DAC_READ_SEARCH: the right to read regardless of permissions."""


def confine(libc: ctypes.CDLL, plan: dict[str, Any]) -> None:
    """Carry out a plan of `sandbox.jail.layers`: keys `limits`, `user`, `landlock` and `filter`, each may be None.

    `drop` gives up all capabilities; `reads_all` keeps the one to read regardless of permissions after a change of
    user, which landlock limits.
    """
    try:  # a candidate is killed first where memory runs out; not a layer, since a child can revert it
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
    for name, value in (plan["limits"] or {}).items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    if plan["drop"]:
        _drop_privileges(libc, plan["user"], 1 << READ_SEARCH if plan["reads_all"] else 0)
    # After the change of user, which would clear both. The judge reads results from the child's memory.
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    if plan["landlock"] is not None:
        restrict_files(libc, plan["landlock"])
    if plan["filter"] is not None:
        install_filter(libc, plan["filter"])


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _drop_privileges(libc: ctypes.CDLL, user: int | None, kept: int) -> None:
    """Become `user`, with the capabilities in `kept` (a mask of the first 32) and no others, for good."""
    for capability in range(CAPABILITIES):
        if not kept >> capability & 1:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused above the last one that the kernel knows
    if user is not None:
        libc.prctl(PR_SET_KEEPCAPS, 1 if kept else 0, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    wanted = (_Set * 2)(_Set(kept, kept, kept), _Set(0, 0, 0))
    if libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION, 0)), wanted) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")
    if kept and libc.prctl(PR_CAP_AMBIENT, AMBIENT_RAISE, READ_SEARCH, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the right to read could not be kept")


# Landlock, used where namespaces are not available. See landlock(7); the ABI version determines the rights.

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
"""System call numbers, the same on all architectures."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READ = EXECUTE | READ_FILE | READ_DIR
ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights by ABI; 2 added linking across folders, 3 truncation, 5 ioctl on devices."""
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
"""Rights that make sense on a file; the others are of folders, and the kernel refuses them on a file."""
TCP_ABI, BOTH_TCP = 4, 0b11
SCOPE_ABI, SIGNALS_AND_ABSTRACT_SOCKETS = 6, 0b11
PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_abi(libc: ctypes.CDLL) -> int:
    """Return the kernel's version of landlock; 0 for none."""
    create_version = 1
    return max(0, int(libc.syscall(CREATE, None, ctypes.c_size_t(0), create_version)))


def restrict_files(libc: ctypes.CDLL, fence: dict[str, list[str]]) -> None:
    """Allow only the paths under `read`, `list` (names in a folder, no contents) and `write`; no TCP, no signals out.

    Missing paths are skipped. Raises `OSError` where the kernel refuses.
    """
    level = landlock_abi(libc)
    if level == 0:
        raise OSError("this kernel has no landlock")
    rights = ALL_FILES[min(level, max(ALL_FILES))]
    network = BOTH_TCP if level >= TCP_ABI else 0
    scoped = SIGNALS_AND_ABSTRACT_SOCKETS if level >= SCOPE_ABI else 0
    size = 24 if level >= SCOPE_ABI else 16 if level >= TCP_ABI else 8
    ruleset = _Ruleset(rights, network, scoped)
    handle = _checked(libc.syscall(CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), 0))
    for kind, allowed in (("read", READ), ("list", READ_DIR), ("write", rights)):
        for path in fence[kind]:
            _allow(libc, handle, path, allowed)
    _checked(libc.syscall(RESTRICT, handle, 0))
    os.close(handle)


def _allow(libc: ctypes.CDLL, handle: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        rights &= OF_A_FILE
    rule = _PathBeneath(rights, parent)
    _checked(libc.syscall(ADD_RULE, handle, PATH_BENEATH, ctypes.byref(rule), 0))
    os.close(parent)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock refused a rule")
    return result


# The system call filter lists refused calls, not allowed ones: CUDA, OpenMP, ninja, nvcc and gcc use hundreds of calls,
# which change from version to version. A refused call returns EPERM.

X86_64, AARCH64 = "x86_64", "aarch64"
AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
X32_BIT = 0x40000000
SAME_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
"""Numbers above 424 are shared by all architectures."""
REFUSED: dict[str, dict[str, int]] = {
    X86_64: {
        "syslog": 103, "ptrace": 101, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159,
        "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
        "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
        "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320,
        "bpf": 321, "userfaultfd": 323,
    },
    AARCH64: {
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162,
        "settimeofday": 170, "adjtimex": 171, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224,
        "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}  # fmt: skip
REFUSED_ALONE: dict[str, dict[str, int]] = {
    X86_64: {
        "shmget": 29, "shmat": 30, "shmctl": 31, "connect": 42, "semget": 64, "semop": 65, "semctl": 66, "msgget": 68,
        "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "truncate": 76, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93,
        "lchown": 94, "utime": 132, "setpriority": 141, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "semtimedop": 220, "utimes": 235, "mq_open": 240,
        "mq_unlink": 241, "ioprio_set": 251, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "utimensat": 280,
        "pidfd_send_signal": 424, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    },
    AARCH64: {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "truncate": 45, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88,
        "setpriority": 140, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188,
        "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195,
        "shmat": 196, "connect": 203, "pidfd_send_signal": 424, "fchmodat2": 452, "setxattrat": 463,
        "removexattrat": 466,
    },
}  # fmt: skip
"""Refused too without namespaces, since landlock does not cover them: segments and queues that outlive their maker,
sockets in the file system (a session bus would start anything), permissions of the user's files, priorities."""
TIMERS = {X86_64: {"timer_create": 222, "timerfd_create": 283}, AARCH64: {"timerfd_create": 85, "timer_create": 107}}
"""Calls that make timers which continue while their process is stopped. Each expiry interrupts the core that set it,
and thousands slow a call that is timed there. A GPU driver may need them. A thread's own waits end with the stop, and
`setitimer` and `alarm` have one timer per process."""
OF_A_PROCESS = {
    X86_64: {
        "kill": 62, "rt_sigqueueinfo": 129, "sched_setparam": 142, "sched_setscheduler": 144, "tkill": 200,
        "sched_setaffinity": 203, "tgkill": 234, "migrate_pages": 256, "move_pages": 279, "rt_tgsigqueueinfo": 297,
        "sched_setattr": 314, "pidfd_open": 434,
    },
    AARCH64: {
        "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130,
        "tgkill": 131, "rt_sigqueueinfo": 138, "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240,
        "sched_setattr": 274, "pidfd_open": 434,
    },
}  # fmt: skip
"""Calls whose first argument names a process. Without namespaces, judge and supervisor may not be named."""
EXAMINED = {
    X86_64: {
        "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "fcntl": 72, "prctl": 157, "prlimit64": 302,
        "clone3": 435,
    },
    AARCH64: {
        "fcntl": 25, "ioctl": 29, "prctl": 167, "socket": 198, "socketpair": 199, "clone": 220, "prlimit64": 261,
        "clone3": 435,
    },
}  # fmt: skip
CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
LOCAL_FAMILIES = (1, 16)
"""AF_UNIX and AF_NETLINK, the only available sockets: one for this machine, the other for the kernel."""
DATAGRAM, TYPE_BITS = 2, 0xF
"""A datagram socket can send without a connection."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX, which type into the terminal of the caller."""
OWNER_OF_SIGNALS = (8, 15)
"""fcntl F_SETOWN and F_SETOWN_EX, which signal other processes when data arrive."""
PRIVATE_OPTIONS = (1, 4, 0x59616D61)
"""prctl PR_SET_PDEATHSIG, PR_SET_DUMPABLE and PR_SET_PTRACER: the supervisor and the judge rely on them."""

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, DONE, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050000, 0x00050001, 0x00050026, 0x80000000
"""DONE: the call does nothing and reports success."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
Instruction = tuple[int, int, int, int]


def filter_architecture() -> str | None:
    """Return this machine's architecture; None where the filter does not know it."""
    name = os.uname().machine
    return name if name in AUDIT_ARCH else None


def filter_program(architecture: str, alone: bool, guarded: tuple[int, ...] = (), *allowed: str) -> list[Instruction]:
    """Make the filter as BPF instructions `(code, jump if true, jump if false, operand)`.

    `alone`: there are no namespaces, so the filter refuses what they would stop, and calls that name a `guarded`
    process. `allowed` may hold `timers`, which continue while their process is stopped, and `cores`, changes of a
    thread's cores. An OpenMP library aborts where it cannot change them, so without `cores` the call does nothing.
    """
    refused = {**SAME_EVERYWHERE, **REFUSED[architecture], **(REFUSED_ALONE[architecture] if alone else {})}
    refused |= {} if "timers" in allowed else TIMERS[architecture]
    examined = EXAMINED[architecture]
    code: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT_ARCH[architecture])]
    code += [(RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if architecture == X86_64:
        code += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, EPERM)]
    for number in sorted(refused.values()):
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM)]
    if "cores" not in allowed:
        code += [(EQUAL, 0, 1, OF_A_PROCESS[architecture]["sched_setaffinity"]), (RETURN, 0, 0, DONE)]
    # clone3 could hide its flags behind a pointer; "no such call" makes the C library fall back to clone.
    code += [(EQUAL, 0, 1, examined["clone3"]), (RETURN, 0, 0, ENOSYS)]
    code += _when(examined["clone"], FIRST_ARGUMENT, [(ANY_BIT, 0, 1, CLONE_NEW), (RETURN, 0, 0, EPERM)])
    unix, netlink = LOCAL_FAMILIES
    local: list[Instruction] = [(EQUAL, 2, 0, unix), (EQUAL, 1, 0, netlink), (RETURN, 0, 0, EPERM)]
    if alone:
        local += [(LOAD, 0, 0, SECOND_ARGUMENT), (AND, 0, 0, TYPE_BITS), *_refuse_values([DATAGRAM])]
    for call in ("socket", "socketpair"):
        code += _when(examined[call], FIRST_ARGUMENT, local)
    code += _when(examined["ioctl"], SECOND_ARGUMENT, _refuse_values(TERMINAL_INPUT))
    if alone:
        code += _guard(architecture, guarded)
    return [*code, (RETURN, 0, 0, ALLOW)]


def _guard(architecture: str, guarded: tuple[int, ...]) -> list[Instruction]:
    examined = EXAMINED[architecture]
    # Limits of other processes: only 0, the caller itself, may be named.
    code = _when(examined["prlimit64"], FIRST_ARGUMENT, [(EQUAL, 1, 0, 0), (RETURN, 0, 0, EPERM)])
    code += _when(examined["fcntl"], SECOND_ARGUMENT, _refuse_values(OWNER_OF_SIGNALS))
    code += _when(examined["prctl"], FIRST_ARGUMENT, _refuse_values(PRIVATE_OPTIONS))
    everybody = 2**32 - 1
    named = [everybody, *guarded, *(2**32 - pid for pid in guarded)]
    for number in OF_A_PROCESS[architecture].values():
        code += _when(number, FIRST_ARGUMENT, _refuse_values(named))
    return code


def _when(number: int, argument: int, body: list[Instruction]) -> list[Instruction]:
    """Apply `body` to the low half of an argument of one call, and allow what it does not refuse."""
    inner = [(LOAD, 0, 0, argument), *body, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(inner), number), *inner]


def _refuse_values(values: Iterable[int]) -> list[Instruction]:
    return [step for value in values for step in ((EQUAL, 0, 1, value), (RETURN, 0, 0, EPERM))]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install_filter(libc: ctypes.CDLL, plan: dict[str, Any]) -> None:
    """Install the filter for this process and its future children; the plan's keys are those of `filter_program`.

    Needs no_new_privs. Raises `OSError`.
    """
    architecture = filter_architecture()
    if architecture is None:
        raise OSError(f"the system call filter does not know {os.uname().machine}")
    steps = filter_program(architecture, plan["alone"], tuple(plan["guarded"]), *plan["allowed"])
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    whole = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    set_seccomp, mode_filter = 22, 2
    if libc.prctl(set_seccomp, mode_filter, ctypes.byref(whole), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the system call filter was refused")
