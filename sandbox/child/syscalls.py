"""The seccomp filter: system calls that no kernel, compiler or GPU runtime needs are refused with EPERM.

A list of what is refused, not of what is allowed: CUDA, OpenMP, ninja, nvcc and gcc use hundreds of calls that change
from version to version. Standard library only.
"""

import ctypes
import platform
import struct

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
}
"""Numbers above 424 are shared by all architectures."""
REFUSED: dict[str, dict[str, int]] = {
    X86_64: {
        "syslog": 103, "ptrace": 101, "vhangup": 153, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163,
        "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
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
SHARED_MEMORY = {
    X86_64: {"shmget": 29, "semget": 64, "msgget": 68, "setpriority": 141, "mq_open": 240},
    AARCH64: {"mq_open": 180, "setpriority": 140, "msgget": 186, "semget": 190, "shmget": 194},
}
"""Refused too where no namespace holds them: segments that outlive their maker, others' priorities."""
EXAMINED = {
    X86_64: {"ioctl": 16, "socket": 41, "clone": 56, "prlimit64": 302, "clone3": 435},
    AARCH64: {"ioctl": 29, "socket": 198, "clone": 220, "prlimit64": 261, "clone3": 435},
}
CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
NETWORK_FAMILIES = (2, 10, 15, 17, 21, 29, 30, 31, 38, 40, 43, 44)
"""AF_INET, INET6, KEY, PACKET, RDS, CAN, TIPC, BLUETOOTH, ALG, VSOCK, SMC, XDP. Unix sockets and netlink stay."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX, which type into the terminal of the caller."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
Instruction = tuple[int, int, int, int]


def machine() -> str | None:
    """This machine's architecture, where the filter knows it."""
    name = platform.machine()
    return name if name in AUDIT_ARCH else None


def program(architecture: str, alone: bool) -> list[Instruction]:
    """The filter as BPF instructions `(code, jump if true, jump if false, operand)`.

    `alone`: no namespaces are around it, so what they would stop is refused here.
    """
    refused = {**SAME_EVERYWHERE, **REFUSED[architecture], **(SHARED_MEMORY[architecture] if alone else {})}
    examined = EXAMINED[architecture]
    code: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT_ARCH[architecture])]
    code += [(RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if architecture == X86_64:
        code += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, EPERM)]
    for number in sorted(refused.values()):
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM)]
    # A later clone3 could hide its flags behind a pointer; "no such call" makes the C library fall back to clone.
    code += [(EQUAL, 0, 1, examined["clone3"]), (RETURN, 0, 0, ENOSYS)]
    code += _when(examined["clone"], FIRST_ARGUMENT, [(ANY_BIT, 0, 1, CLONE_NEW), (RETURN, 0, 0, EPERM)])
    code += _when(examined["socket"], FIRST_ARGUMENT, _refuse_values(NETWORK_FAMILIES))
    code += _when(examined["ioctl"], SECOND_ARGUMENT, _refuse_values(TERMINAL_INPUT))
    if alone:
        # Limits of other processes: only 0, the caller itself, may be named.
        code += _when(examined["prlimit64"], FIRST_ARGUMENT, [(EQUAL, 1, 0, 0), (RETURN, 0, 0, EPERM)])
    return [*code, (RETURN, 0, 0, ALLOW)]


def _when(number: int, argument: int, body: list[Instruction]) -> list[Instruction]:
    """`body` on the low half of an argument, for one call; what it does not refuse is allowed."""
    inner = [(LOAD, 0, 0, argument), *body, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(inner), number), *inner]


def _refuse_values(values: tuple[int, ...]) -> list[Instruction]:
    return [step for value in values for step in ((EQUAL, 0, 1, value), (RETURN, 0, 0, EPERM))]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(libc: ctypes.CDLL, alone: bool) -> None:
    """Put the filter on this process and all that it will start. Needs no_new_privs. Raises `OSError`."""
    architecture = machine()
    if architecture is None:
        raise OSError(f"the system call filter does not know {platform.machine()}")
    code = b"".join(struct.pack("HBBI", *step) for step in program(architecture, alone))
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    set_seccomp, mode_filter = 22, 2
    if libc.prctl(set_seccomp, mode_filter, ctypes.byref(filter_program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the system call filter was refused")
