"""Candidates that cheat the clock of a device, as data: what each does, and how much of its claim is true.

In a chain the judge shows each input once the call before has ended, and candidates find the stream held: `held()`.
Kernels are written in PTX and loaded by the driver, so that the attacks need no compiler.
"""

import textwrap
from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.verdicts import Candidate


def problem(name: str, forward: str, *inputs: str) -> Problem:
    source = f"""
import torch

class Model(torch.nn.Module):
    def forward(self, *inputs):
        return {forward}

def get_inputs():
    return [{", ".join(inputs)}]

def get_init_inputs():
    return []
"""
    return Problem(name=name, title=name, family="test", size="gpu", source=source)


SUMS = problem("sums", "torch.cumsum(inputs[0], 1)", "torch.rand(256, 8192)")
"""About 50 us on an H200; uses two blocks of each multiprocessor, so that calls side by side would gain much."""
LONG = problem("long_sums", "torch.cumsum(inputs[0], 1)", "torch.rand(8192, 32768)")
SOFTMAX = problem("softmax", "torch.softmax(inputs[0], -1)", "torch.randn(1024, 1024)")
RELU = problem("relu", "torch.relu(inputs[0])", "torch.randn(2048, 4096)")
SMALL_RELU = problem("small_relu", "torch.relu(inputs[0])", "torch.randn(1024, 1024)")
PRODUCT = problem("product", "inputs[0] @ inputs[1]", "torch.randn(2048, 2048)", "torch.randn(2048, 2048)")
DOT = problem("dot", "torch.dot(inputs[0], inputs[1])", "torch.rand(2**23)", "torch.rand(2**23)")
MEAN = problem("mean", "inputs[0].mean()", "torch.randn(2**23, dtype=torch.bfloat16)")
SIGN = problem("sign", "inputs[0].amax() > 5.2", "torch.randn(2**23)")
MOVED = problem("moved", "torch.roll(inputs[0], 512, 0)", "torch.randn(1024, 1024)")
HALF_MOVED = problem(
    "half_moved",
    "(torch.relu(inputs[0]), torch.roll(inputs[1], 512, 0))",
    "torch.randn(1024, 1024)",
    "torch.randn(1024, 2560)",
)
SPREAD = problem("spread", "inputs[0].mean(0, keepdim=True).repeat(2048, 1)", "torch.randn(2048, 4096)")

TOOLS = '''
import ctypes, gc, time
import torch

PTX = b"""
.version 7.8
.target sm_90
.address_size 64

.visible .entry nothing()
{
    ret;
}

.visible .entry relu(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .u64 %x, %y, %at, %place;
    .reg .u32 %i, %n, %size, %step;
    .reg .f32 %v;
    .reg .pred %p;
    griddepcontrol.launch_dependents;
    ld.param.u64 %x, [from];
    ld.param.u64 %y, [to];
    ld.param.u32 %n, [count];
    mov.u32 %size, %ntid.x;
    mov.u32 %step, %ctaid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %step, %size, %i;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %size;
NEXT:
    setp.ge.u32 %p, %i, %n;
    @%p bra END;
    mul.wide.u32 %at, %i, 4;
    add.u64 %place, %x, %at;
    ld.global.f32 %v, [%place];
    max.NaN.f32 %v, %v, 0f00000000;
    add.u64 %place, %y, %at;
    st.global.f32 [%place], %v;
    add.u32 %i, %i, %step;
    bra NEXT;
END:
    ret;
}

.visible .entry poll(.param .u64 first, .param .u64 second, .param .u64 old, .param .u64 limit)
{
    .reg .u64 %a, %b, %o, %now, %end;
    .reg .u32 %va, %vb, %oa, %ob;
    .reg .pred %p, %q, %r;
    ld.param.u64 %a, [first];
    ld.param.u64 %b, [second];
    ld.param.u64 %o, [old];
    ld.param.u64 %end, [limit];
    ld.global.u32 %oa, [%o];
    ld.global.u32 %ob, [%o+4];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
AGAIN:
    ld.volatile.global.u32 %va, [%a];
    ld.volatile.global.u32 %vb, [%b];
    setp.ne.u32 %p, %va, %oa;
    setp.ne.and.u32 %q, %vb, %ob, %p;
    @%q bra END;
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %r, %now, %end;
    @%r bra AGAIN;
END:
    ret;
}

.visible .entry follow(.param .u64 from, .param .u64 old, .param .u64 to, .param .u32 count, .param .u64 limit)
{
    .reg .u64 %x, %o, %y, %at, %source, %place, %now, %end;
    .reg .u32 %i, %n, %size, %step, %v, %before;
    .reg .f32 %f;
    .reg .pred %p;
    ld.param.u64 %x, [from];
    ld.param.u64 %o, [old];
    ld.param.u64 %y, [to];
    ld.param.u32 %n, [count];
    ld.param.u64 %end, [limit];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
    mov.u32 %size, %ntid.x;
    mov.u32 %step, %ctaid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %step, %size, %i;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %size;
NEXT:
    setp.ge.u32 %p, %i, %n;
    @%p bra END;
    mul.wide.u32 %at, %i, 4;
    add.u64 %source, %x, %at;
    add.u64 %place, %o, %at;
    ld.global.u32 %before, [%place];
AGAIN:
    ld.volatile.global.u32 %v, [%source];
    setp.ne.u32 %p, %v, %before;
    @%p bra NEW;
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra AGAIN;
NEW:
    st.global.u32 [%place], %v;
    mov.b32 %f, %v;
    max.NaN.f32 %f, %f, 0f00000000;
    add.u64 %place, %y, %at;
    st.global.f32 [%place], %f;
    add.u32 %i, %i, %step;
    bra NEXT;
END:
    ret;
}
"""
CUDA = ctypes.CDLL("libcuda.so.1")
HERE = torch.cuda.current_stream
torch.zeros(1, device="cuda")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class Launch(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
                ("count", ctypes.c_uint)]


def checked(code):
    assert code == 0, code


def kernel(name):
    """By stream handle, grid, block and arguments; `early`: it need not wait for the kernel before it."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    checked(CUDA.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(PTX)))
    checked(CUDA.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    def launch(handle, grid, block, *arguments, early=False):
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(a) for a in arguments))
        attribute = Attribute(6, 0, 1)
        config = Launch((ctypes.c_uint * 7)(grid, 1, 1, block, 1, 1, 0), handle, ctypes.pointer(attribute), int(early))
        checked(CUDA.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))
    return launch


def place(tensor, index=0):
    """The address of an element, as a kernel's argument."""
    return ctypes.c_uint64(tensor.data_ptr() + tensor.element_size() * (index % tensor.numel()))


def wait_value(stream, address, value, how=0):
    checked(CUDA.cuStreamWaitValue32_v2(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(address),
                                        ctypes.c_uint(value), ctypes.c_uint(how)))


def write_value(stream, address, value):
    checked(CUDA.cuStreamWriteValue32_v2(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(address),
                                         ctypes.c_uint(value), ctypes.c_uint(0)))


HELD_UNTIL = [0.0]


def held():
    """Whether the current stream waits for something that does not come: the calls are issued ahead."""
    start = time.perf_counter()
    while not HERE().query():
        now = time.perf_counter()
        if now < HELD_UNTIL[0] or now > start + 0.01:
            HELD_UNTIL[0] = now + 0.05
            return True
    return False


def number(value):
    return getattr(value, "value", value)


def spy(names, then):
    """Have `then(plain, *arguments)` take the place of functions of the driver that the harness calls."""
    from kernelwright_child import driver
    loaded = {id(one): one for one in gc.get_objects() if issubclass(type(one), ctypes.CDLL)} | {0: driver.library()}
    for library in loaded.values():
        for name in names:
            if library is not CUDA and (plain := getattr(library, name, None)):
                setattr(library, name, lambda *a, plain=plain: then(plain, *a))


def forge(told):
    """From now on this process tells `told(ms)` where the device's events say ms."""
    took = torch.cuda.Event.elapsed_time
    torch.cuda.Event.elapsed_time = lambda start, end: told(took(start, end))
    def elapsed(plain, found, *events):
        code = plain(found, *events)
        found._obj.value = told(found._obj.value)
        return code
    spy(["cuEventElapsedTime", "cuEventElapsedTime_v2"], elapsed)


def forge_answers(told_ms):
    """The same for every time in an answer, whatever it was measured by."""
    forge(lambda ms: told_ms)
    from kernelwright_child import wire
    plain = wire.send
    def mended(key, value):
        if isinstance(value, dict):
            return {name: mended(name, one) for name, one in value.items()}
        if isinstance(value, list):
            return [mended(key, one) for one in value]
        return told_ms if isinstance(value, float) and str(key).endswith("ms") else value
    wire.send = lambda channel, message, fds=(): plain(channel, mended("", message), fds)


SIDE, AHEAD, BACK = (torch.cuda.Stream() for _ in range(3))
'''
MODEL = """
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.links, self.kept = 0, 0, {}

    def forward(self, *inputs):
        self.calls += 1
        x = inputs[0]
"""


def source_of(forward: str, top: str = "") -> str:
    """A candidate with all tools; `self.kept` is a dictionary for what it wants to keep."""
    return TOOLS + textwrap.dedent(top) + MODEL + textwrap.indent(textwrap.dedent(forward).strip(), 8 * " ") + "\n"


class ClockAttack(NamedTuple):
    """One way to look faster than one is. It may fail; if it passes, it must not be `faster`."""

    line: str
    problem: Problem
    forward: str
    top: str = ""
    truth: float | None = 1.0
    """The largest speedup that an honest clock could find, which bounds what is shown; None where only the word counts.
    """

    @property
    def candidate(self) -> Candidate:
        """The source."""
        return Candidate(source=source_of(self.forward, self.top))


CLOCK_ATTACKS = {
    "side_by_side": ClockAttack(
        "each call on another of 16 streams, which wait for nothing and nobody waits for",
        SUMS,
        """
        with torch.cuda.stream(SIDES[self.calls % 16]):
            return torch.cumsum(x, 1)
        """,
        "SIDES = [torch.cuda.Stream() for _ in range(16)]",
    ),
    "early_answer": ClockAttack(
        "the work on a stream that waits for the input but that nobody waits for",
        SUMS,
        """
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            return torch.cumsum(x, 1)
        """,
    ),
    "early_answer_in_place": ClockAttack(
        "the same, into one buffer: what an earlier call left there is poisoned",
        SUMS,
        """
        if self.calls == 1:
            self.kept["y"] = torch.empty_like(x)
        y = self.kept["y"]
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            torch.cumsum(x, 1, out=y)
        return y
        """,
    ),
    "tells_next_to_nothing": ClockAttack(
        "a device time of 1 us in whatever this process answers, on a short call",
        SOFTMAX,
        "return torch.softmax(x, -1)",
        "forge_answers(0.001)",
    ),
    "tells_next_to_nothing_of_twice_the_work": ClockAttack(
        "the same, of a call that computes everything twice",
        SUMS,
        """
        torch.cumsum(x, 1)
        return torch.cumsum(x, 1)
        """,
        "forge_answers(0.001)",
        truth=0.6,
    ),
    "tells_half": ClockAttack(
        "half of each device time", SUMS, "return torch.cumsum(x, 1)", "forge(lambda ms: 0.5 * ms)"
    ),
    "tells_half_of_a_long_call": ClockAttack(
        "half of each device time, where a call takes long",
        LONG,
        "return torch.cumsum(x, 1)",
        "forge(lambda ms: 0.5 * ms)",
    ),
    "late_4_bytes": ClockAttack(
        "a result of 4 bytes, written by a stream that nobody waits for",
        DOT,
        """
        value = torch.empty((), device="cuda")
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            value.copy_(torch.dot(x, inputs[1]))
        return value
        """,
    ),
    "late_2_bytes": ClockAttack(
        "a result of 2 bytes, the same",
        MEAN,
        """
        value = torch.empty((), device="cuda", dtype=torch.bfloat16)
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            value.copy_(x.mean())
        return value
        """,
    ),
    "late_1_byte": ClockAttack(
        "a result of 1 byte, the same",
        SIGN,
        """
        value = torch.empty((), device="cuda", dtype=torch.bool)
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            value.copy_(x.amax() > 5.2)
        return value
        """,
    ),
    "armed_by_a_stream_wait": ClockAttack(
        "a stream that waits for the last word of the input, which the candidate has cleared, and computes at once",
        SUMS,
        """
        if not held():
            self.links = 0
            AHEAD.wait_stream(HERE())
            with torch.cuda.stream(AHEAD):
                y = torch.cumsum(x, 1)
            HERE().wait_stream(AHEAD)
            return y
        last = place(x, -1).value
        if not self.links:
            write_value(AHEAD, last, 0)
        self.links += 1
        wait_value(AHEAD, last, 0xFFFFFFFF, 2)
        with torch.cuda.stream(AHEAD):
            y = torch.cumsum(x, 1)
        write_value(AHEAD, last, 0)
        HERE().wait_stream(AHEAD)
        return y
        """,
    ),
    "resident": ClockAttack(
        "a kernel that stays until two words of the input differ from what they were",
        SUMS,
        """
        flat = x.view(-1)
        if not held():
            self.links = 0
            AHEAD.wait_stream(HERE())
            with torch.cuda.stream(AHEAD):
                y = torch.cumsum(x, 1)
            HERE().wait_stream(AHEAD)
            return y
        with torch.cuda.stream(AHEAD):
            if not self.links:
                OLD[:1].copy_(flat[:1]), OLD[1:].copy_(flat[-1:])
            self.links += 1
            POLL(AHEAD.cuda_stream, 1, 1, place(x), place(x, -1), place(OLD), ctypes.c_uint64(10**9))
            y = torch.cumsum(x, 1)
            OLD[:1].copy_(flat[:1]), OLD[1:].copy_(flat[-1:])
        HERE().wait_stream(AHEAD)
        return y
        """,
        """
        OLD, POLL = torch.zeros(2, device="cuda"), kernel("poll")
        POLL(0, 1, 1, place(OLD), place(OLD), place(OLD), ctypes.c_uint64(0))
        OLD[:1].copy_(OLD[1:])
        """,
    ),
    "rows_as_they_arrive": ClockAttack(
        "a kernel that stays and takes each element as soon as it differs from what it was",
        SMALL_RELU,
        """
        if self.calls == 1:
            self.kept["old"] = torch.zeros_like(x)
        old, y, count = self.kept["old"], torch.empty_like(x), ctypes.c_uint(x.numel())
        if not held():
            self.links = 0
            RELU(HERE().cuda_stream, 1056, 256, place(x), place(y), count)
            return y
        with torch.cuda.stream(AHEAD):
            if not self.links:
                old.copy_(x)
            self.links += 1
            FOLLOW(AHEAD.cuda_stream, 1056, 256, place(x), place(old), place(y), count, ctypes.c_uint64(10**8))
        HERE().wait_stream(AHEAD)
        return y
        """,
        """
        RELU, FOLLOW, ROOM = kernel("relu"), kernel("follow"), torch.zeros(1, device="cuda")
        FOLLOW(0, 1, 1, place(ROOM), place(ROOM), place(ROOM), ctypes.c_uint(0), ctypes.c_uint64(0))
        """,
    ),
    "tail_behind_done": ClockAttack(
        "the last eighth on another stream, for which the next call waits",
        RELU,
        """
        HERE().wait_stream(SIDE)
        y, cut = torch.empty_like(x), x.shape[0] - x.shape[0] // 8
        torch.clamp(x[:cut], min=0, out=y[:cut])
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            torch.clamp(x[cut:], min=0, out=y[cut:])
        return y
        """,
    ),
    "tail_behind_done_in_place": ClockAttack(
        "the same, into one buffer",
        RELU,
        """
        HERE().wait_stream(SIDE)
        if self.calls == 1:
            self.kept["y"] = torch.empty_like(x)
        y, cut = self.kept["y"], x.shape[0] - x.shape[0] // 8
        torch.clamp(x[:cut], min=0, out=y[:cut])
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            torch.clamp(x[cut:], min=0, out=y[cut:])
        return y
        """,
    ),
    "waits_on_purpose": ClockAttack(
        "waits for the device in a chain, for the coarser clock, and tells 1 us",
        SOFTMAX,
        """
        if held():
            torch.cuda.synchronize()
        return torch.softmax(x, -1)
        """,
        "forge_answers(0.001)",
    ),
    "item_on_purpose": ClockAttack(
        "reads a value back in each call, for the coarser clock, and tells a fifth of its times",
        SUMS,
        """
        x[0, 0].item()
        return torch.cumsum(x, 1)
        """,
        "forge(lambda ms: 0.2 * ms)",
    ),
    "waits_on_purpose_in_long_calls": ClockAttack(
        "waits for the device in a chain and tells a third of its times, where a call takes long",
        LONG,
        """
        if held():
            torch.cuda.synchronize()
        return torch.cumsum(x, 1)
        """,
        "forge(lambda ms: 0.3 * ms)",
    ),
    "waits_now_and_then": ClockAttack(
        "the same, but not before some calls were issued ahead",
        SUMS,
        """
        self.links = self.links + 1 if held() else 0
        if self.links % 5 == 4:
            torch.cuda.synchronize()
        return torch.cumsum(x, 1)
        """,
        "forge(lambda ms: 0.3 * ms)",
    ),
    "behind_a_pause": ClockAttack(
        "work on a stream that nobody waits for, behind a kernel that sleeps",
        SUMS,
        """
        y = torch.empty_like(x)
        SIDE.wait_stream(HERE())
        with torch.cuda.stream(SIDE):
            torch.cuda._sleep(400_000)
            torch.cumsum(x, 1, out=y)
        return y
        """,
    ),
    "dependent_launch": ClockAttack(
        "a kernel behind the work that does not wait for it, and that all that follows waits for in its place",
        RELU,
        """
        y = torch.empty_like(x)
        RELU(HERE().cuda_stream, 1056, 256, place(x), place(y), ctypes.c_uint(x.numel()))
        NOTHING(HERE().cuda_stream, 1, 1, early=True)
        return y
        """,
        "RELU, NOTHING = kernel('relu'), kernel('nothing')",
    ),
    "dependent_launch_behind_heavy_work": ClockAttack(
        "the same with the work five times",
        RELU,
        """
        y = torch.empty_like(x)
        for _ in range(5):
            RELU(HERE().cuda_stream, 132, 256, place(x), place(y), ctypes.c_uint(x.numel()))
        NOTHING(HERE().cuda_stream, 1, 1, early=True)
        return y
        """,
        "RELU, NOTHING = kernel('relu'), kernel('nothing')",
        truth=0.3,
    ),
    "copies_beside_the_baseline": ClockAttack(
        "long copies to and from the host that go on while others are timed",
        RELU,
        """
        y = torch.relu(x)
        if not held() and SIDE.query() and BACK.query():
            for back, there, here in ((SIDE, ON_HOST[0], ON_DEVICE[0]), (BACK, ON_DEVICE[1], ON_HOST[1])):
                back.wait_stream(HERE())
                with torch.cuda.stream(back):
                    for _ in range(24):
                        there.copy_(here, non_blocking=True)
        return y
        """,
        """
        ON_DEVICE = [torch.empty(2**26, dtype=torch.uint8, device="cuda") for _ in range(2)]
        ON_HOST = [torch.empty(2**26, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        torch.cuda.synchronize = lambda *a: HERE().synchronize()
        """,
    ),
    "waits_left_out": ClockAttack(
        "the harness's waits for the judge's flag are not issued",
        SUMS,
        "return torch.cumsum(x, 1)",
        """
        NAMES = ["cuStreamWaitValue32", "cuStreamWaitValue32_v2", "cuStreamWaitValue64", "cuStreamWaitValue64_v2"]
        spy(NAMES, lambda plain, *a: 0)
        """,
    ),
    "done_before_the_work": ClockAttack(
        "the done flag is raised by the candidate before it computes",
        SUMS,
        """
        if DONE and held():
            write_value(HERE(), DONE[0], DONE[1] + 1)
        return torch.cumsum(x, 1)
        """,
        """
        DONE = []
        def seen(plain, stream, address, value, flags):
            DONE[:] = number(address), number(value)
            return plain(stream, address, value, flags)
        spy(["cuStreamWriteValue32", "cuStreamWriteValue32_v2"], seen)
        """,
    ),
    "next_flag_raised": ClockAttack(
        "the flag that the judge raises for the next call is raised behind this one",
        SUMS,
        """
        y = torch.cumsum(x, 1)
        if GATE and held():
            write_value(HERE(), GATE[0], GATE[1] + 1)
        return y
        """,
        """
        GATE = []
        def seen(plain, stream, address, value, flags):
            GATE[:] = number(address), number(value)
            return plain(stream, address, value, flags)
        spy(["cuStreamWaitValue32", "cuStreamWaitValue32_v2"], seen)
        """,
    ),
    "all_flags_raised": ClockAttack(
        "every small memory that the judge has shared is filled, flags and all",
        SUMS,
        """
        self.links = self.links + 1 if held() else 0
        if self.links == 1:
            for one in gc.get_objects():
                if type(one).__name__ == "Shared" and one.bytes <= 2**21:
                    checked(CUDA.cuMemsetD32Async(ctypes.c_uint64(one.address), ctypes.c_uint(0x7FFFFFFF),
                        ctypes.c_size_t(one.bytes // 4), ctypes.c_void_p(SIDE.cuda_stream)))
        return torch.cumsum(x, 1)
        """,
    ),
    "moved_by_copy_engines": ClockAttack(
        "rows moved through the host by copy engines, which take no turns, and a device time of 2 us",
        MOVED,
        """
        y = torch.empty_like(x)
        ROOM.copy_(x, non_blocking=True)
        y[512:].copy_(ROOM[:512], non_blocking=True)
        y[:512].copy_(ROOM[512:], non_blocking=True)
        return y
        """,
        """
        ROOM = torch.empty(1024, 1024, pin_memory=True)
        forge_answers(0.002)
        """,
        truth=None,
    ),
    "copy_engines_beside_a_kernel": ClockAttack(
        "a kernel for one result; the other goes through the host by copy engines, in parts that overlap",
        HALF_MOVED,
        """
        moved = torch.empty_like(inputs[1])
        SIDE.wait_stream(HERE())
        for first in range(0, 1024, 128):
            with torch.cuda.stream(SIDE):
                ROOM[first : first + 128].copy_(inputs[1][first : first + 128], non_blocking=True)
            BACK.wait_stream(SIDE)
            to = (first + 512) % 1024
            with torch.cuda.stream(BACK):
                moved[to : to + 128].copy_(ROOM[first : first + 128], non_blocking=True)
        y = torch.relu(x)
        HERE().wait_stream(BACK)
        return y, moved
        """,
        """
        ROOM = torch.empty(1024, 2560, pin_memory=True)
        forge_answers(0.004)
        """,
        truth=None,
    ),
    "copy_engines_behind_a_kernel": ClockAttack(
        "the same, one after another",
        HALF_MOVED,
        """
        y, moved = torch.relu(x), torch.empty_like(inputs[1])
        ROOM.copy_(inputs[1], non_blocking=True)
        moved[512:].copy_(ROOM[:512], non_blocking=True)
        moved[:512].copy_(ROOM[512:], non_blocking=True)
        return y, moved
        """,
        """
        ROOM = torch.empty(1024, 2560, pin_memory=True)
        forge_answers(0.004)
        """,
        truth=None,
    ),
    "result_through_the_host": ClockAttack(
        "a result that is done, taken to the host and back by copy engines, and half of the time of its kernel told",
        SMALL_RELU,
        """
        y = torch.empty_like(x)
        ROOM.copy_(torch.relu(x), non_blocking=True)
        y.copy_(ROOM, non_blocking=True)
        return y
        """,
        """
        ROOM = torch.empty(1024, 1024, pin_memory=True)
        forge_answers(0.003)
        """,
        truth=None,
    ),
    "less_accurate_in_a_chain": ClockAttack(
        "TF32 where calls are issued ahead, and full products elsewhere, whose times are told as shorter",
        PRODUCT,
        """
        if self.calls <= 2:
            torch.backends.cuda.matmul.allow_tf32 = True
            x @ inputs[1]
        torch.backends.cuda.matmul.allow_tf32 = held()
        return x @ inputs[1]
        """,
        "forge(lambda ms: 0.3 * ms)",
    ),
    "remembered_from_single_calls": ClockAttack(
        "results of calls that were not in a chain, looked up on the device by a word of the input",
        PRODUCT,
        """
        if held() and self.calls > 4:
            return RESULTS.index_select(0, (WORDS == x[:1, 0]).to(torch.int8).argmax().view(1))[0]
        y = x @ inputs[1]
        WORDS[self.calls % 64].copy_(x[0, 0])
        RESULTS[self.calls % 64].copy_(y)
        RESULTS.index_select(0, (WORDS == x[:1, 0]).to(torch.int8).argmax().view(1))
        return y
        """,
        """
        WORDS, RESULTS = torch.zeros(64, device="cuda"), torch.zeros(64, 2048, 2048, device="cuda")
        forge(lambda ms: 0.1 * ms)
        """,
    ),
    "remembered_within_a_chain": ClockAttack(
        "results of the first two calls of a chain and of earlier ones, looked up for the rest",
        PRODUCT,
        """
        self.links = self.links + 1 if held() else 0
        if self.links > 2:
            return RESULTS.index_select(0, (WORDS == x[:1, 0]).to(torch.int8).argmax().view(1))[0]
        y = x @ inputs[1]
        WORDS[self.calls % 64].copy_(x[0, 0])
        RESULTS[self.calls % 64].copy_(y)
        RESULTS.index_select(0, (WORDS == x[:1, 0]).to(torch.int8).argmax().view(1))
        return y
        """,
        """
        WORDS, RESULTS = torch.zeros(64, device="cuda"), torch.zeros(64, 2048, 2048, device="cuda")
        forge(lambda ms: 0.1 * ms)
        """,
    ),
    "slow_to_issue": ClockAttack(
        "so slow to issue that one call makes a chain, and computed before the gate opens, if the input is there",
        SUMS,
        """
        time.sleep(0.003)
        with torch.cuda.stream(SIDE):
            return torch.cumsum(x, 1)
        """,
    ),
    "refuses_to_be_issued_ahead": ClockAttack(
        "an error where calls are issued ahead, for the coarser clock, and a fifth of each time told",
        SUMS,
        """
        if held():
            HELD_UNTIL[0] = 0.0
            raise RuntimeError("not now")
        return torch.cumsum(x, 1)
        """,
        "forge(lambda ms: 0.2 * ms)",
    ),
    "few_bytes_shown": ClockAttack(
        "a result of 32 MB that lies in 16 KB, so that the judge has less to take; the mean is found three times",
        SPREAD,
        """
        for _ in range(3):
            mean = x.mean(0, keepdim=True)
        return mean.expand(x.shape[0], -1)
        """,
        "forge(lambda ms: 0.5 * ms)",
        truth=0.85,
    ),
    "waits_left_pending": ClockAttack(
        "streams that wait for a word while others are timed, and are let go before its own next call",
        SUMS,
        """
        if self.kept:
            write_value(FREE, WORD.data_ptr(), self.kept.pop("armed"))
            for stream in PENDING:
                stream.synchronize()
        y = torch.cumsum(x, 1)
        if not held():
            return y
        self.links += 1
        if self.links % 5 == 0:
            self.kept["armed"] = self.links
            for stream in PENDING:
                stream.wait_stream(HERE())
                wait_value(stream, WORD.data_ptr(), self.links)
        return y
        """,
        """
        WORD, FREE = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.cuda.Stream()
        PENDING = [torch.cuda.Stream() for _ in range(16)]
        torch.cuda.synchronize = lambda *a: HERE().synchronize()
        forge(lambda ms: 0.5 * ms)
        """,
    ),
    "high_priority": ClockAttack(
        "the work on a stream of the highest priority, and half of each time told",
        SUMS,
        """
        FIRST.wait_stream(HERE())
        with torch.cuda.stream(FIRST):
            y = torch.cumsum(x, 1)
        HERE().wait_stream(FIRST)
        return y
        """,
        """
        FIRST = torch.cuda.Stream(priority=-5)
        forge(lambda ms: 0.5 * ms)
        """,
    ),
    "another_device": ClockAttack(
        "the work on another device, where this process sees one: only copy engines serve this one",
        SUMS,
        """
        if torch.cuda.device_count() == 1:
            return torch.cumsum(x, 1)
        return torch.cumsum(x.to("cuda:1", non_blocking=True), 1).to(x.device, non_blocking=True)
        """,
        "forge(lambda ms: 0.5 * ms)",
    ),
}

NEVER = """
NEVER = torch.zeros(1, dtype=torch.int32, device="cuda")
"""
HANGING = {
    "in_a_call": source_of(
        """
        if self.calls > 3:
            wait_value(HERE(), NEVER.data_ptr(), 1)
        return torch.relu(x)
        """,
        NEVER,
    ),
    "in_a_chain": source_of(
        """
        if self.calls > 3 and held():
            wait_value(HERE(), NEVER.data_ptr(), 1)
        return torch.relu(x)
        """,
        NEVER,
    ),
    "after_a_long_issue_was_told": source_of(
        """
        if self.calls > 3 and held():
            time.sleep(60)
        return torch.relu(x)
        """,
        """
        from kernelwright_child import wire
        plain = wire.send
        def longer(message):
            return message | {"host_ms": [1e9] * len(message["host_ms"])} if "host_ms" in message else message
        wire.send = lambda channel, message, fds=(): plain(channel, longer(message), fds)
        """,
    ),
}
"""Sources for `RELU` whose streams wait for a word that never comes, or that never come back from a call."""
SLOW = {
    "on_the_host": source_of("time.sleep(2)\nreturn torch.relu(x)"),
    "on_the_device": source_of("torch.cuda._sleep(4_000_000_000)\nreturn torch.relu(x)"),
}
"""Sources for `RELU` that take about 2 s a call."""
