"""The seccomp filter: system calls that no kernel, compiler or GPU runtime needs are refused with EPERM.

A list of what is refused, not of what is allowed: CUDA, OpenMP, ninja, nvcc and gcc use hundreds of calls that change
from version to version. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

X86_64, AARCH64 = "x86_64", "aarch64"
AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
X32_BIT = 0x40000000
SAME_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
}
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
"""Refused too where no namespace holds them, since landlock does not see them: segments and queues that outlive their
maker, sockets in the file system (a session bus would start anything), permissions of the user's files, priorities."""
TIMERS = {
    X86_64: {"timer_create": 222, "timerfd_create": 283},
    AARCH64: {"timerfd_create": 85, "timer_create": 107},
}
"""What makes timers that go on while their process is stopped, thousands of them: each that expires interrupts the core
that set it, wakes nobody where its signal is ignored, and so slows whoever is timed there. A driver of a GPU may need
them. What a thread itself waits for in a call ends with the stop; `setitimer` and `alarm` have one a process."""
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
"""Calls whose first argument names a process. Where no namespace hides them, judge and keeper may not be named."""
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
"""AF_UNIX and AF_NETLINK, the only sockets to be had: the one talks within the machine, the other with the kernel."""
DATAGRAM, TYPE_BITS = 2, 0xF
"""A datagram socket can be sent through without having been connected."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX, which type into the terminal of the caller."""
OWNER_OF_SIGNALS = (8, 15)
"""fcntl F_SETOWN and F_SETOWN_EX, which send signals to others when something can be read."""
PRIVATE_OPTIONS = (1, 4, 0x59616D61)
"""prctl PR_SET_PDEATHSIG, PR_SET_DUMPABLE and PR_SET_PTRACER: the keeper and the judge rely on them."""

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, DONE, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050000, 0x00050001, 0x00050026, 0x80000000
"""DONE: the call does nothing and says that it did."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
Instruction = tuple[int, int, int, int]


def machine() -> str | None:
    """This machine's architecture, where the filter knows it."""
    name = os.uname().machine
    return name if name in AUDIT_ARCH else None


def program(architecture: str, alone: bool, guarded: tuple[int, ...] = (), *allowed: str) -> list[Instruction]:
    """The filter as BPF instructions `(code, jump if true, jump if false, operand)`.

    `alone`: no namespaces are around it, so what they would stop is refused here, and whatever names one of the
    `guarded` processes. What may be `allowed` besides: `timers` that go on while their process is stopped, and to
    change the `cores` of a thread. An OpenMP library ends the process where it can not, so without it nothing happens.
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
    # A later clone3 could hide its flags behind a pointer; "no such call" makes the C library fall back to clone.
    code += [(EQUAL, 0, 1, examined["clone3"]), (RETURN, 0, 0, ENOSYS)]
    code += _when(examined["clone"], FIRST_ARGUMENT, [(ANY_BIT, 0, 1, CLONE_NEW), (RETURN, 0, 0, EPERM)])
    for call in ("socket", "socketpair"):
        code += _when(examined[call], FIRST_ARGUMENT, _only_local_sockets(datagrams=not alone))
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
    """`body` on the low half of an argument, for one call; what it does not refuse is allowed."""
    inner = [(LOAD, 0, 0, argument), *body, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(inner), number), *inner]


def _refuse_values(values: Iterable[int]) -> list[Instruction]:
    return [step for value in values for step in ((EQUAL, 0, 1, value), (RETURN, 0, 0, EPERM))]


def _only_local_sockets(datagrams: bool) -> list[Instruction]:
    unix, netlink = LOCAL_FAMILIES
    code: list[Instruction] = [(EQUAL, 2, 0, unix), (EQUAL, 1, 0, netlink), (RETURN, 0, 0, EPERM)]
    if not datagrams:
        code += [(LOAD, 0, 0, SECOND_ARGUMENT), (AND, 0, 0, TYPE_BITS), *_refuse_values([DATAGRAM])]
    return code


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(libc: ctypes.CDLL, plan: dict[str, Any]) -> None:
    """Put the filter on this process and all that it will start; `alone`, `guarded`, `allowed` are as in `program`.

    Needs no_new_privs. Raises `OSError`.
    """
    architecture = machine()
    if architecture is None:
        raise OSError(f"the system call filter does not know {os.uname().machine}")
    steps = program(architecture, plan["alone"], tuple(plan["guarded"]), *plan["allowed"])
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    set_seccomp, mode_filter = 22, 2
    if libc.prctl(set_seccomp, mode_filter, ctypes.byref(filter_program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the system call filter was refused")
