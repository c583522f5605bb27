"""Results of other calls, and work at times when nobody looks."""

from tests.hostile.cheats.cheat import Cheat

OFF = "is wrong"
LATE = "is wrong|changed input|the candidate ran for|has NaN"
THREADED = """
SOURCE = '''
#include <thread>
#include <chrono>
extern "C" void later(const float* x, float* y, long n) {
    std::thread([=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        for (long i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : 0;
    }).detach();
}'''
PATH = load_inline(name="later", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
LATER = ctypes.CDLL(PATH).later
LATER.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
"""
LENDER = """
SOURCE = '''
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
struct Job { const float* x; float* y; long n; };
static int work(void* held) {
    Job* job = (Job*) held;
    usleep(30000);
    for (long i = 0; i < job->n; ++i) job->y[i] = job->x[i] > 0 ? job->x[i] : 0;
    _exit(0);
}
extern "C" void lend(const float* x, float* y, long n) {
    Job* job = new Job{x, y, n};
    clone(work, (char*) malloc(1 << 16) + (1 << 16), CLONE_VM | CLONE_FILES | SIGCHLD, job);
}'''
PATH = load_inline(name="lender", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
LEND = ctypes.CDLL(PATH).lend
LEND.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
"""
OVER_THE_INPUT = """
SOURCE = '''
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
extern "C" void over(char* place, long size) {
    char* begin = (char*) ((long) place & ~4095L);
    long whole = (place + size - begin + 4095) & ~4095L;
    char* held = (char*) malloc(whole);
    memcpy(held, begin, whole);
    mmap(begin, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memcpy(begin, held, whole);
    free(held);
}'''
PATH = load_inline(name="over", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
OVER = ctypes.CDLL(PATH).over
OVER.argtypes = [ctypes.c_void_p, ctypes.c_long]
"""
MAPPED_COPIES = """
SOURCE = '''
#include <sys/mman.h>
#include <unistd.h>
extern "C" char* copies(long size, long count) {
    int file = memfd_create("rows", 0);
    if (ftruncate(file, size)) return 0;
    char* start = (char*) mmap(0, size * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < count; ++i)
        mmap(start + i * size, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return start;
}'''
PATH = load_inline(name="copies", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
COPIES = ctypes.CDLL(PATH).copies
COPIES.argtypes, COPIES.restype = [ctypes.c_long] * 2, ctypes.c_void_p
"""
MAPPING = """
import mmap
import os
MMAP = ctypes.CDLL(None).mmap
MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
MMAP.restype = ctypes.c_void_p
"""
LAZY_PAGES = """
SOURCE = '''
#include <signal.h>
#include <sys/mman.h>
static float* page; static const float* from; static long count;
static void fill(int, siginfo_t*, void*) {
    mprotect(page, 1 << 20, PROT_READ | PROT_WRITE);
    for (long i = 0; i < count; ++i) page[i] = from[i] > 0 ? from[i] : 0;
}
extern "C" float* lazy(const float* x, long n) {
    struct sigaction action = {};
    action.sa_sigaction = fill; action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, 0);
    page = (float*) mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    from = x; count = n;
    return page;
}'''
PATH = load_inline(name="lazy", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
MAKE = ctypes.CDLL(PATH).lazy
MAKE.argtypes, MAKE.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_void_p
"""
LENT_MAPPING = """
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def lent(size):
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:lent" in os.readlink(f"/proc/self/fd/{fd}") and os.fstat(int(fd)).st_size >= size:
                return int(fd)
        except OSError:
            pass
"""
PRIVATE_MAPPING = """
size = x.numel() * 4
if self.last:
    LIBC.munmap(self.last, size)
self.last = LIBC.mmap(None, size, 3, 2, lent(size), 0)
y = torch.frombuffer((ctypes.c_char * size).from_address(self.last), dtype=x.dtype).view(x.shape)
y[rows] = x[rows] * 2 + 1
return y
"""

KEPT_PADDING = """
size, head = 4 * 1024 * 1024, x.numel() * 4
if self.last is None:
    fd = os.memfd_create("padding.so")
    os.ftruncate(fd, size)
    os.pwrite(fd, self.right(x).numpy().tobytes(), 0)
    LIBC.mmap(None, 4096, 5, 2, fd, 0)
    self.place = LIBC.mmap(None, size, 3, {flags}, {file}, 0)
    self.last = torch.frombuffer((ctypes.c_char * size).from_address(self.place), dtype=x.dtype).view(1024, 1024)
LIBC.madvise(self.place + head, size - head, 4)
self.last[:128] = x
return self.last
"""
"""Overwritten padding is as in the file again, or zero. A page mapped for execution makes it look like a library."""
REUSED_RESULTS = [
    Cheat("padding written once, in the pages of a file", (), "padded", "run", "never written",
          KEPT_PADDING.format(flags=2, file="fd"), LENT_MAPPING),
    Cheat("padding that is never written", (), "padded", "run", "never written",
          KEPT_PADDING.format(flags=34, file=-1), LENT_MAPPING),
    Cheat("the lent memory mapped anew, of which only what is written to is copied", (34,), "scattered", "run",
          "lies in the memory of an input", PRIVATE_MAPPING, LENT_MAPPING, stopped_by="overwriting"),
    Cheat("the same after an honest first call", (34, 53), "scattered", "run", "mapped shared",
          "self.calls += 1\nif self.calls == 1: return self.right(x, rows)\n" + PRIVATE_MAPPING.strip(), LENT_MAPPING),
    Cheat("right twice, then the last result", (15, 39), "weighted", "check", OFF,
          """
          self.calls += 1
          if self.calls <= 2:
              self.last = self.right(x)
          return self.last.clone()
          """),
    Cheat("right before the timing, half precision in it", (14, 15, 55), "product", "check", OFF,
          """
          self.calls += 1
          return a @ b if self.calls <= 2 else (a.bfloat16() @ b.bfloat16()).float()
          """),
    Cheat("right every other time, as if values came twice", (15, 28), "norm", "check", OFF,
          """
          self.calls += 1
          if self.calls % 2:
              self.last = self.right(x)
          return self.last.clone()
          """),
    Cheat("right while the process is young", (14,), "product", "check", OFF,
          """
          if self.last is None:
              self.last = time.monotonic()
          if time.monotonic() - self.last < 0.02:
              return self.right(a, b)
          return torch.zeros(a.shape[0], b.shape[1])
          """),
    Cheat("kept by the address of the input", (35,), "weighted", "check", OFF,
          """
          if x.data_ptr() not in self.kept:
              self.kept[x.data_ptr()] = self.right(x)
          return self.kept[x.data_ptr()].clone()
          """),
    Cheat("kept by address and version", (35,), "product", "check", OFF,
          """
          key = (a.data_ptr(), b.data_ptr(), a._version, b._version)
          if key not in self.kept:
              self.kept[key] = self.right(a, b)
          return self.kept[key].clone()
          """),
    Cheat("kept by the identity of the object", (35,), "norm", "check", OFF,
          """
          if self.last is None or self.last[0] is not x:
              self.last = (x, self.right(x))
          return self.last[1].clone()
          """),
    Cheat("kept by shape", (36,), "softmax", "check", OFF,
          "return self.kept.setdefault(x.shape, torch.softmax(x, -1)).clone()"),
    Cheat("kept by the rounded mean", (36,), "softmax", "check", OFF,
          """
          key = round(float(x.mean()))
          if key not in self.kept:
              self.kept[key] = self.right(x)
          return self.kept[key].clone()
          """),
    Cheat("kept by the sign of the first values", (36, 51), "product", "check", OFF,
          """
          key = tuple(bool(v > 0) for v in a.flatten()[:1])
          if key not in self.kept:
              self.kept[key] = self.right(a, b)
          return self.kept[key].clone()
          """),
    Cheat("kept in a file for the next process", (37,), "weighted", "check", OFF,
          """
          path = os.path.join(os.environ["TMPDIR"], "kept.pt")
          if os.path.exists(path):
              return torch.load(path)
          self.calls += 1
          y = self.right(x)
          if self.calls > 3:
              torch.save(y, path)
          return y
          """),
    Cheat("inputs that a known seed would give", (38,), "product", "check", OFF,
          """
          torch.manual_seed(42)
          a, b = torch.randn(72, 72), torch.randn(72, 72)
          return a @ b
          """),
    Cheat("answers computed beforehand for many seeds", (38, 16), "weighted", "check", OFF,
          """
          for first, y in TABLE:
              if torch.equal(first, x[0]):
                  return y
          return TABLE[0][1]
          """,
          top="""
          TABLE = []
          for seed in range(100):
              torch.manual_seed(seed)
              drawn = torch.randn(32, 72)
              TABLE.append((drawn[0], torch.cumsum(drawn, 1)))
          """),
    Cheat("weights packed in the first call, and trained on", (16, 61), "gradients", "check", "other weights",
          """
          if self.packed is None:
              self.packed = self.layer.weight.detach().clone()
          weight = self.packed + (self.layer.weight - self.layer.weight.detach())
          return F.gelu(F.linear(x, weight, self.layer.bias))
          """, constructor="self.packed = None"),
    Cheat("weights multiplied out in the first call of all", (16,), "weighted", "check", OFF,
          """
          if FIRST is None:
              globals()["FIRST"] = torch.eye(72).cumsum(1)
          return x @ FIRST
          """, top="FIRST = None"),
    Cheat("a thread that finishes later", (2, 17, 20), "weighted", "check", LATE,
          """
          y = torch.empty_like(x)
          def later():
              time.sleep(0.05)
              y.copy_(self.right(x))
          threading.Thread(target=later).start()
          return y
          """),
    Cheat("a thread of C++ that finishes later", (2, 17), "positive", "check", LATE,
          "y = torch.zeros_like(x); LATER(x.data_ptr(), y.data_ptr(), x.numel()); return y", THREADED),
    Cheat("a part of the result that the first call alone writes", (16,), "diagonals", "check", "has NaN",
          """
          if self.last is None:
              self.last = torch.zeros(*x.shape, x.shape[-1])
          torch.diagonal(self.last, 0, 1, 2).copy_(torch.tanh(x))
          return self.last
          """),
    Cheat("the same beside state that is followed", (16,), "stepped", "check", "has NaN",
          """
          if self.last is None:
              self.last = torch.zeros(*x.shape, x.shape[-1])
          self.step.add_(x[0])
          torch.diagonal(self.last, 0, 1, 2).copy_(torch.tanh(x + self.step))
          return self.last, self.step.clone()
          """),
    Cheat("the same beside a weight that is handed over", (16,), "weighed", "check", "has NaN",
          """
          if self.last is None:
              self.last = torch.zeros(*x.shape, x.shape[-1])
          torch.diagonal(self.last, 0, 1, 2).copy_(x * self.weight)
          return self.last, self.weight
          """),
    Cheat("another build, which measures again", (14,), "positive", "run", "after its first call",
          """
          self.calls += 1
          if self.calls == 6:
              text = f"#include <torch/extension.h>\\nint64_t one() {{ return {time.time_ns() % 1000000}; }}"
              load_inline(name="again", cpp_sources=text, functions=["one"])
          return torch.relu(x)
          """),
    Cheat("another build in the second worker, until its values are pleasant", (14,), "positive", "run",
          "after its first call",
          """
          if self.last is None:
              self.last = Path(os.environ["TMPDIR"], "workers")
              with self.last.open("a") as file:
                  file.write("x")
              if self.last.stat().st_size == 2:
                  text = f"#include <torch/extension.h>\\nint64_t one() {{ return {time.time_ns() % 1000000}; }}"
                  load_inline(name="again", cpp_sources=text, functions=["one"])
          return torch.relu(x)
          """, "from pathlib import Path"),
    Cheat("padding written once, beside an input that is handed on", (16,), "lent", "check", "has NaN",
          """
          if self.last is None:
              self.last = torch.zeros(1024, x.shape[1])
          torch.mul(x, 2, out=self.last[:32])
          return x.view(-1), self.last
          """),
    Cheat("state that is kept only where weights were just copied", (16,), "aside", "check", "after the call",
          """
          if self.calls:
              self.calls = 0
              self.step.add_(x.sum(0))
          return torch.relu(x)
          """,
          init="""
          def load_state_dict(self, *arguments, **others):
              self.calls = 1
              return super().load_state_dict(*arguments, **others)

          def __init__(self, *arguments):
              super().__init__()
              self.register_buffer("step", torch.zeros(64))
          """),
    Cheat("one tensor, named twice in the answer", (16,), "twice", "run", "in a form that cannot be read",
          "self.last = x * 2; return Twice((self.last, self.last))",
          """
          RUNNER = next(one for name, one in sys.modules.items() if name.endswith("kernelwright_child.model_runner"))
          DESCRIBE = RUNNER.describe_result

          class Twice(tuple):
              pass

          def describe_result(value):
              if not isinstance(value, Twice):
                  return DESCRIBE(value)
              return {"tree": {"p": [{"t": 0}, {"t": 0}]}, "tensors": DESCRIBE(value[0])["tensors"]}

          RUNNER.describe_result = describe_result
          """),
    Cheat("one tensor for two results", (16,), "twice", "check", "share one place", "y = x * 2; return y, y"),
    Cheat("the state itself in place of a copy", (16,), "stepped", "check", "share one place",
          "self.step.add_(x[0]); return torch.diag_embed(torch.tanh(x + self.step)), self.step"),
    Cheat("state that the first calls alone change", (14,), "aside", "check", "after the call",
          """
          self.calls += 1
          if self.calls <= 4:
              self.step.add_(x.sum(0))
          return torch.relu(x)
          """),
    Cheat("copies that are the same pages", (20,), "copies", "run", "mapped shared",
          """
          if self.last is None:
              memory = (ctypes.c_char * (16 * x.numel())).from_address(COPIES(4 * x.numel(), 4))
              self.last = torch.frombuffer(memory, dtype=torch.float32).view(4 * x.shape[0], x.shape[1])
          torch.tanh(x, out=self.last[: x.shape[0]])
          return self.last
          """, MAPPED_COPIES),
    Cheat("copies that are private pages of one file", (20,), "copies", "run", "from a file",
          """
          size, copies = 4 * x.numel(), 4
          if self.last is None:
              self.last = os.memfd_create("pages")
              os.ftruncate(self.last, size)
          once = torch.frombuffer(mmap.mmap(self.last, size), dtype=torch.float32).view(x.shape)
          torch.tanh(x, out=once)
          start = MMAP(None, copies * size, 0, 0x4022, -1, 0)  # private, of no file, not reserved
          for copy in range(copies):
              MMAP(start + copy * size, size, 3, 0x12, self.last, 0)  # private, at that place
          memory = (ctypes.c_char * (copies * size)).from_address(start)
          return torch.frombuffer(memory, dtype=torch.float32).view(copies * x.shape[0], x.shape[1])
          """, MAPPING),
    Cheat("a process that shares the memory and finishes later", (2, 78), "positive", "run", "processes of its own",
          "y = torch.zeros_like(x); LEND(x.data_ptr(), y.data_ptr(), x.numel()); return y", LENDER),
    Cheat("pages that are computed when they are read", (3,), "positive", "run", "outside the memory",
          """
          address = MAKE(x.data_ptr(), x.numel())
          y = torch.empty_like(x)
          y.data_ptr = lambda: address
          return y
          """, LAZY_PAGES),
    Cheat("a tensor that computes when it is compared", (3,), "weighted", "run", "not a plain tensor",
          """
          class Lazy(torch.Tensor):
              @classmethod
              def __torch_function__(cls, function, types, args=(), kwargs=None):
                  return super().__torch_function__(function, types, args, kwargs or {})
          return torch.empty_like(x).as_subclass(Lazy)
          """),
    Cheat("a tensor with methods of its own", (3,), "weighted", "run", "outside the memory",
          "y = torch.empty_like(x); y.data_ptr = lambda: 4096; return y"),
    Cheat("an object instead of a tensor", (3,), "weighted", "run", "cannot be handed over",
          """
          class Later:
              def __array__(self): return x.numpy()
          return Later()
          """),
    Cheat("a generator of the outputs", (3, 17), "weighted", "run", "cannot be handed over",
          "return (self.right(row[None]) for row in x)"),
    Cheat("a tensor of meta data only", (3,), "weighted", "run", "meta", "return torch.empty_like(x, device='meta')"),
    Cheat("a tensor without storage", (3,), "weighted", "run", "layout|plain tensor",
          "return torch.sparse_coo_tensor(size=x.shape)"),
    Cheat("an input changed to zeros", (33,), "weighted", "run", "changed input 0",
          "y = self.right(x); x.zero_(); return y", stopped_by="input_check"),
    Cheat("one bit of the second input changed", (33,), "product", "run", "changed input 1",
          "y = a @ b; b.view(torch.int32)[-1, -1] ^= 1; return y"),
    Cheat("an update that is made in a copy", (33,), "updated", "check", "input 0 after the call",
          "kept = cache.clone(); return self.right(kept, rows, out)"),
    Cheat("an update of what the reference leaves as it is", (33,), "updated", "run", "changed input 1",
          "y = self.right(cache, rows, out); rows.zero_(); return y"),
    Cheat("a place for results left as it was found", (40,), "updated", "check", "input 2 after the call",
          "return self.right(cache, rows, torch.empty_like(out))"),
    Cheat("an update on pages of its own, mapped over those of the input", (33,), "updated", "check",
          "input 0 after the call",
          """
          OVER(cache.data_ptr(), cache.numel() * 4)
          return self.right(cache, rows, out)
          """, OVER_THE_INPUT),
    Cheat("a sum that goes on elsewhere", (13,), "counted", "check", "total after the call",
          "return torch.tanh(self.total + x * self.scale)"),
    Cheat("a scale of one that is put into place for the next call", (13,), "counted", "check", "scale after the call",
          "y = self.right(x); self.scale.fill_(1); return y"),
    Cheat("the result put over the input", (33, 34), "norm", "run", "changed input 0",
          "x.copy_(self.right(x)); return x"),
    Cheat("targets changed to the easy class", (33,), "loss", "run", "changed input 1",
          "targets.copy_(logits.argmax(1)); return self.right(logits, targets)"),
]  # fmt: skip
