"""Hostile GPU candidates, as data: what each does, at which stage it must fail, and what the verdict must say.

Each is judged for `PROBLEM`. Kernels that no library has are written in PTX and loaded by the driver, so that the
attacks need no compiler.
"""

import textwrap
from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.verdicts import Candidate

ROWS, COLUMNS = 2048, 4096
PROBLEM = Problem(
    name="rectified",
    title="The larger of each element and zero",
    family="test",
    size="gpu",
    source=f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn({ROWS}, {COLUMNS})]

def get_init_inputs():
    return []
""",
)
HONEST = "return torch.relu(x)"
SLOWER = "slower"
"""In place of a stage: the candidate is right and passes, and must be found to be slower than it claims."""
NOT_FASTER = "not faster"
"""The same, where it must not be found to be faster than the baseline."""

MODEL = """
import ctypes, sys, threading, time
import torch

PTX = b\"\"\"
.version 7.0
.target sm_70
.address_size 64

.visible .entry poll(.param .u64 where, .param .u32 old)
{{
    .reg .u64 %a;
    .reg .u32 %v, %o;
    .reg .pred %p;
    ld.param.u64 %a, [where];
    ld.param.u32 %o, [old];
AGAIN:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, %o;
    @%p bra AGAIN;
    ret;
}}

.visible .entry wild(.param .u64 where)
{{
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [where];
    mov.u32 %v, 7;
    st.global.u32 [%a], %v;
    ret;
}}
\"\"\"


def kernel(name):
    cuda = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(PTX)) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()) == 0
    def launch(stream, *arguments):
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        code = cuda.cuLaunchKernel(
            function, one, one, one, one, one, one, none, ctypes.c_void_p(stream.cuda_stream), pointers, None
        )
        assert code == 0, code
    return launch


def no_waiting():
    \"\"\"Make every way of waiting for the device do nothing.\"\"\"
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.Stream.synchronize = lambda self: None
    torch.cuda.Event.synchronize = lambda self: None
    torch.cuda.Event.elapsed_time = lambda self, other: 0.001

{top}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.kept = {{}}

    def forward(self, x):
        self.calls += 1
{forward}
"""


class Attack(NamedTuple):
    """One way to cheat or to do harm."""

    line: str
    stage: str
    """Where it must fail; several, divided by `|`, where the moment decides. Or `SLOWER`, or `NOT_FASTER`."""
    words: str
    """What the reason holds. Several, divided by `|`: any of them will do."""
    forward: str = HONEST
    top: str = ""

    @property
    def candidate(self) -> Candidate:
        """The source."""
        forward = textwrap.indent(textwrap.dedent(self.forward).strip(), 8 * " ")
        return Candidate(source=MODEL.format(top=textwrap.dedent(self.top), forward=forward))


LATE = "still changed|wrong|NaN|no answer within"
OTHER_STREAM = """
OTHER = torch.cuda.Stream()
no_waiting()
"""

ATTACKS = {
    "side_stream": Attack(
        "work on a stream that nobody waits for, with waiting made to do nothing",
        "run|check",
        LATE,
        """
        y = torch.empty_like(x)
        with torch.cuda.stream(OTHER):
            torch.cuda._sleep(20_000_000)
            y.copy_(torch.relu(x))
        return y
        """,
        OTHER_STREAM,
    ),
    "late_tail": Attack(
        "all but the last rows at once, these on another stream",
        "run|check",
        LATE,
        """
        y = torch.empty_like(x)
        y[:-32] = torch.relu(x[:-32])
        OTHER.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(OTHER):
            torch.cuda._sleep(20_000_000)
            y[-32:] = torch.relu(x[-32:])
        return y
        """,
        OTHER_STREAM,
    ),
    "patched_events": Attack(
        "events and synchronize replaced by ones that report a microsecond, around slow work",
        SLOWER,
        "",
        """
        torch.cuda._sleep(4_000_000)
        y = torch.relu(x)
        WAIT(torch.cuda.current_stream())
        return y
        """,
        """
        WAIT = torch.cuda.Stream.synchronize
        no_waiting()
        """,
    ),
    "graph_replay": Attack(
        "a CUDA graph that computes the first input for ever",
        "check",
        "wrong",
        """
        if self.calls == 1:
            self.static = x.clone()
            torch.relu(self.static)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = torch.relu(self.static)
        self.graph.replay()
        return self.result
        """,
    ),
    "cache_by_pointer": Attack(
        "the result of an earlier call at the same address",
        "check",
        "wrong",
        """
        if x.data_ptr() not in self.kept:
            self.kept[x.data_ptr()] = torch.relu(x)
        return self.kept[x.data_ptr()]
        """,
    ),
    "same_buffer_once": Attack(
        "a buffer that was filled in the first calls and is handed out unchanged ever after",
        "check",
        "wrong|NaN",
        """
        if self.calls <= 3:
            self.result = torch.relu(x)
        return self.result
        """,
    ),
    "persisting_l2": Attack(
        "the inputs pinned in the L2 cache for the next call",
        NOT_FASTER,
        "",
        """
        window = Window(x.data_ptr(), 2**24, 1.0, 2, 1)
        assert RUNTIME.cudaStreamSetAttribute(None, 1, ctypes.byref(window)) == 0
        y = torch.relu(x)
        x.max()
        return y
        """,
        """
        torch.zeros(1, device="cuda")
        RUNTIME = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
        assert RUNTIME.cudaDeviceSetLimit(6, ctypes.c_size_t(2**24)) == 0

        class Window(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("ratio", ctypes.c_float),
                        ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("rest", ctypes.c_char * 64)]
        """,
    ),
    "uninitialised": Attack("memory that was never written", "check", "wrong|NaN", "return torch.empty_like(x)"),
    "freed_result": Attack(
        "memory that held the right result of an earlier call",
        "check",
        "wrong|NaN",
        """
        if self.calls == 1:
            return torch.relu(x)
        return torch.empty_like(x)
        """,
    ),
    "search_memory": Attack(
        "a search of all free device memory for somebody else's result",
        "check",
        "wrong|NaN",
        """
        first = torch.relu(x[0, :64])
        held = []
        try:
            while len(held) < 64: held.append(torch.empty(2**28, device="cuda"))
        except torch.OutOfMemoryError: pass
        for block in held:
            rows = block.view(-1, x.shape[1])
            hits = (rows[:, :64] == first).all(1).nonzero()
            if hits.numel() and int(hits[0]) + x.shape[0] <= rows.shape[0]:
                return rows[int(hits[0]):int(hits[0]) + x.shape[0]].clone()
        del held, block, rows
        torch.cuda.empty_cache()
        return torch.zeros_like(x)
        """,
    ),
    "background_thread": Attack(
        "a thread that launches the work after the answer",
        "run|check",
        LATE,
        """
        y = torch.empty_like(x)
        def later():
            time.sleep(0.002)
            y.copy_(torch.relu(x))
        threading.Thread(target=later, daemon=True).start()
        return y
        """,
    ),
    "early_start": Attack(
        "a kernel that stays, sees the next inputs appear and computes before the clock runs",
        "run|check",
        "while no call|no answer within|wrong|still changed",
        """
        y = self.kept.get("ahead")
        if y is None:
            y = torch.relu(x)
        WAIT(torch.cuda.current_stream())
        self.out = torch.empty_like(x)
        torch.cuda.current_stream().wait_stream(AHEAD) if self.calls > 1 else None
        WAIT(torch.cuda.current_stream())
        old = int(x.view(torch.int32)[-1, -1])
        POLL(AHEAD, ctypes.c_uint64(x.data_ptr() + 4 * (x.numel() - 1)), ctypes.c_uint32(old & 0xFFFFFFFF))
        with torch.cuda.stream(AHEAD):
            self.kept["ahead"] = torch.relu(x)
        return y
        """,
        """
        WAIT = torch.cuda.Stream.synchronize
        AHEAD = torch.cuda.Stream()
        POLL = kernel("poll")
        no_waiting()
        """,
    ),
    "wild_write": Attack(
        "a write outside all memory, which ends the context",
        "run",
        "illegal memory access|CUDA error|killed|exit code|ended",
        """
        WILD(torch.cuda.current_stream(), ctypes.c_uint64(2**60))
        torch.cuda.synchronize()
        return torch.relu(x)
        """,
        "WILD = kernel('wild')",
    ),
    "wild_index": Attack(
        "an index far outside, which trips an assertion on the device",
        "run",
        "assert|CUDA error",
        """
        far = torch.full((1,), 2**40, device="cuda", dtype=torch.long)
        x.view(-1)[far].sum().item()
        return torch.relu(x)
        """,
    ),
    "changed_input": Attack(
        "the input overwritten", "run", "changed an input|changed input 0", "return x.relu_().clone()"
    ),
    "memory_bomb": Attack(
        "all of the device's memory",
        "run",
        "out of memory|OutOfMemory",
        """
        while True: self.kept[len(self.kept)] = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
        """,
    ),
    "second_try": Attack(
        "the work is done in a call that then says that memory was missing; the next one on the same values is timed",
        "run|check|time",
        "out of memory|OutOfMemory|wrong",
        """
        if self.kept.pop("again", None) is None:
            self.kept |= {"result": torch.relu(x), "again": True}
            raise torch.OutOfMemoryError("out of memory")
        return self.kept["result"]
        """,
    ),
    "endless_kernel": Attack(
        "a kernel that never ends",
        "run",
        "no answer within",
        """
        torch.cuda._sleep(2**60)
        torch.cuda.synchronize()
        return torch.relu(x)
        """,
    ),
    "endless_kernel_in_hiding": Attack(
        "a kernel that never ends, on a stream that nobody waits for",
        "run|check",
        "while no call|no answer within|still changed|wrong",
        """
        if self.calls == 1:
            with torch.cuda.stream(OTHER): torch.cuda._sleep(2**60)
        return torch.relu(x)
        """,
        OTHER_STREAM,
    ),
    "forged_handle": Attack(
        "a made-up name for the output's memory",
        "run",
        "cannot be mapped|in a form",
        HONEST,
        """
        from kernelwright_child import gpu_memory
        gpu_memory.driver.ipc_handle = lambda base: bytes(range(64))
        """,
    ),
    "forged_offset": Attack(
        "a place beyond the end of its memory",
        "run",
        "reaches beyond",
        HONEST,
        """
        from kernelwright_child import gpu_memory
        plain = gpu_memory._said
        gpu_memory._said = lambda tensor, handle, offset: plain(tensor, handle, 2**40)
        """,
    ),
    "freed_output": Attack(
        "the output's memory given back to the driver before it is read",
        "run|check",
        "cannot be mapped|wrong|NaN|still changed|out of memory",
        HONEST,
        """
        from kernelwright_child import gpu_memory
        plain = gpu_memory.describe
        def describe(tensor, spill=None, waits=True):
            said, kept = plain(tensor, spill, waits)
            worker = next(v for v in __import__("gc").get_objects() if type(v).__name__ == "OnDevice")
            worker.worker.results = None
            worker._kept = []
            tensor.set_()
            torch.cuda.empty_cache()
            return said, torch.empty(0, device="cuda")
        gpu_memory.describe = describe
        """,
    ),
    "on_the_processor": Attack("a result on the processor", "run", "wanted", "return torch.relu(x).cpu()"),
}
