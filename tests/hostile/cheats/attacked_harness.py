# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""Attempts on what is around the candidate: the process, its caller, its channel, its files."""

from tests.hostile.cheats.cheat import Cheat

OFF = "is wrong"
ZEROS = "all elements are zero"
GONE = "the child|exit code 0"
STATIC_EXIT = """
SOURCE = '''extern "C" void _exit(int);
__attribute__((constructor)) static void leave() { _exit(0); }'''
load_inline(name="leaves", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
"""
WIRE = """
def module(ending):
    return next(found for name, found in sorted(sys.modules.items()) if name.endswith(ending))
"""

ATTACKED_HARNESS = [
    Cheat("the clock is replaced and nothing computed", (5,), "weighted", "check", ZEROS,
          "return torch.zeros_like(x)",
          "for name in ('perf_counter', 'perf_counter_ns', 'monotonic', 'time'): setattr(time, name, lambda: 0)\n"),
    Cheat("the comparison is replaced", (49,), "weighted", "check", ZEROS, "return torch.zeros_like(x)",
          """
          torch.allclose = torch.equal = lambda *a, **k: True
          torch.testing.assert_close = lambda *a, **k: None
          torch.Tensor.__eq__ = lambda self, other: True
          torch.isclose = lambda a, b, **k: torch.ones_like(a, dtype=torch.bool)
          """),
    Cheat("the statistics are replaced", (76,), "weighted", "check", ZEROS, "return torch.zeros_like(x)",
          """
          import builtins
          statistics.median = statistics.mean = lambda values: 1e-9
          builtins.sorted = lambda values, **k: [1e-9] * 1000
          builtins.sum = lambda values, *a: 0
          """),
    Cheat("an object that acts when it is unpacked", (76,), "weighted", "run", "cannot be handed over",
          """
          class Acts:
              def __reduce__(self): return (os.system, ("true",))
          return Acts()
          """),
    Cheat("the expected result among all objects", (30,), "weighted", "check", OFF,
          """
          found = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == x.shape and t is not x]
          return found[-1].clone() if found else torch.zeros_like(x)
          """),
    Cheat("the expected result in the frames of the callers", (31,), "weighted", "check", OFF,
          """
          frame = sys._getframe()
          while frame:
              for name, value in list(frame.f_locals.items()):
                  if name in ("expected", "want", "exact", "reference", "theirs") and torch.is_tensor(value):
                      return value
              frame = frame.f_back
          return torch.zeros_like(x)
          """),
    Cheat("another way when a caller looks like a checker", (31, 53), "product", "check", OFF,
          """
          frame, names = sys._getframe(), []
          while frame:
              names.append(frame.f_code.co_name + frame.f_code.co_filename)
              frame = frame.f_back
          if any(word in name for name in names for word in ("check", "correct", "allclose", "verify")):
              return self.right(a, b)
          return torch.zeros(a.shape[0], b.shape[1])
          """),
    Cheat("another way when no gradients are asked for", (53,), "product", "check", OFF,
          "return self.right(a, b) if torch.is_grad_enabled() else torch.zeros(a.shape[0], b.shape[1])"),
    Cheat("every tensor of the process set to NaN", (32,), "weighted", "run", "changed input 0",
          """
          for found in gc.get_objects():
              if type(found) is torch.Tensor and found.is_floating_point():
                  found.fill_(float("nan"))
          return torch.full_like(x, float("nan"))
          """),
    Cheat("operators replaced, so that a reference in the process agrees", (60,), "softmax", "check", ZEROS,
          "return torch.softmax(x, -1)",
          "torch.softmax = F.softmax = torch.Tensor.softmax = lambda x, *a, **k: torch.zeros_like(x)\n"),
    Cheat("a wider default dtype for all", (60,), "product", "check", "dtype float64",
          "return torch.tensor(a.tolist()) @ torch.tensor(b.tolist())", "torch.set_default_dtype(torch.float64)\n"),
    Cheat("denormals off and half precision asked for", (60, 55), "product", "check", OFF,
          "with torch.autocast('cpu', torch.bfloat16):\n    return (a @ b).float()",
          "torch.set_float32_matmul_precision('medium'); torch.backends.cudnn.allow_tf32 = True\n"),
    Cheat("the reference by import", (62, 84), "weighted", "load", "No module named",
          "return self.right(x)", "from reference import Model\n"),
    Cheat("the problems by import", (62, 84), "weighted", "load", "No module named",
          "return self.right(x)", "from kernelwright.problems import load_problem\n"),
    Cheat("the reference among the modules", (62,), "weighted", "check", ZEROS,
          """
          for found in list(sys.modules.values()):
              model = getattr(found, "Model", None)
              if isinstance(model, type) and issubclass(model, nn.Module):
                  return model(72)(x)
          return torch.zeros_like(x)
          """),
    Cheat("the reference as a base class", (62,), "weighted", "load", "NameError",
          "return super().forward(x)", "class Base(Model): pass\n"),
    Cheat("words that say that all is well", (44,), "weighted", "check", "structure of the result is None",
          "print('check: pass'); print('correct'); print('{\"outcome\": \"passed\", \"speedup\": 100}'); return None"),
    Cheat("leaving with code 0", (45,), "weighted", "run", GONE, "os._exit(0)"),
    Cheat("leaving with code 0 when imported", (45,), "weighted", "build", GONE, "return x", "os._exit(0)\n"),
    Cheat("SystemExit(0)", (45,), "weighted", "run", "SystemExit", "sys.exit(0)"),
    Cheat("a skipped test", (46,), "weighted", "run", "SkipTest", "import unittest; raise unittest.SkipTest('no case')"),
    Cheat("out of memory, as if the case were too large", (46, 86), "weighted", "run", "OutOfMemory|MemoryError",
          "raise torch.OutOfMemoryError('CUDA out of memory')"),
    Cheat("not implemented here", (46,), "gradients", "run", "NotImplementedError", "raise NotImplementedError"),
    Cheat("a verdict on every descriptor, then leaving", (72,), "weighted", "run", "child|exit code|form|changed input",
          """
          for fd in range(1, 64):
              for text in (b'{"outcome": "passed"}', b'check: pass'):
                  try: os.write(fd, text)
                  except OSError: pass
          os._exit(0)
          """),
    Cheat("answers sent beforehand", (72,), "weighted", "check", ZEROS,
          """
          import stat
          y = torch.zeros_like(x); SENT.append(y)
          text = json.dumps({"tree": {"t": 0}, "tensors": [{"dtype": "float32", "shape": [32, 72], "stride": [72, 1],
                             "address": y.data_ptr()}]}).encode()
          for fd in range(3, 64):
              for _ in range(3):
                  try:
                      if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, text)
                  except OSError: pass
          return y
          """, "SENT = []\n"),
    Cheat("the channel replaced by another", (73,), "weighted", "run", "no answer|child",
          """
          import socket
          mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
          for fd in range(3, 64):
              try:
                  if os.path.realpath(f"/proc/self/fd/{fd}").startswith("/proc") and fd not in (mine.fileno(), other.fileno()):
                      os.dup2(other.fileno(), fd)
              except OSError: pass
          return torch.zeros_like(x)
          """),
    Cheat("the judge's memory and environment are read", (74,), "weighted", "check", ZEROS,
          """
          for pid in (os.getppid(), 1, 2, os.getpid() - 1):
              for name in ("environ", "mem", "maps", "cmdline"):
                  try:
                      with open(f"/proc/{pid}/{name}", "rb") as file: self.kept[pid, name] = file.read(4096)
                  except OSError: pass
          return torch.zeros_like(x)
          """),
    Cheat("files with a result", (77,), "weighted", "check", ZEROS,
          """
          for folder in (os.getcwd(), os.environ["TMPDIR"], os.path.dirname(os.path.abspath(__file__)), "/tmp"):
              for name in ("result.json", "verdict.json", "reward.txt", "score.txt"):
                  try:
                      with open(os.path.join(folder, name), "w") as file: file.write('{"outcome": "passed", "reward": 1}')
                  except OSError: pass
          return torch.zeros_like(x)
          """),
    Cheat("a process that forks twice and outlives", (78,), "weighted", "run", "processes of its own",
          """
          if os.fork() == 0:
              os.setsid()
              if os.fork(): os._exit(0)
              time.sleep(60)
          time.sleep(0.05)
          return self.right(x)
          """, stopped_by="offspring"),
    Cheat("a helper process that wakes its parent", (78, 2), "weighted", "run", "could not be stopped|processes of its own|no answer|ran for",
          """
          if os.fork() == 0:
              end = time.monotonic() + 20
              while time.monotonic() < end: os.kill(os.getppid(), signal.SIGCONT)
              os._exit(0)
          return self.right(x)
          """),
    Cheat("a process that keeps the cores busy while the baseline is timed", (23, 25), "weighted", "run",
          "processes of its own",
          """
          if self.last is None:
              self.last = os.fork()
              while self.last == 0: pass
          return self.right(x)
          """),
    Cheat("the judge's files are changed", (79,), "weighted", "check", ZEROS,
          """
          import torch as package
          for folder in {os.path.dirname(found.__file__) for found in list(sys.modules.values())
                         if getattr(found, "__file__", None) and "kernelwright_child" in found.__file__}:
              for name in ("wire.py", "worker.py", "model_runner.py",
                           "../sandbox/correctness/compare.py"):
                  try:
                      with open(os.path.join(folder, name), "a") as file: file.write("\\nmismatch = lambda *a, **k: None\\n")
                  except OSError: pass
          return torch.zeros_like(x)
          """),
    Cheat("modules in front of the real ones", (80,), "weighted", "check", ZEROS,
          "return torch.zeros_like(x)",
          """
          for folder in {os.getcwd(), os.environ["TMPDIR"], os.path.dirname(os.path.abspath(__file__)), *sys.path}:
              for name in ("sitecustomize.py", "torch.py", "usercustomize.py", "zz.pth"):
                  try:
                      with open(os.path.join(folder, name), "w") as file: file.write("import os; os._exit(0)")
                  except OSError: pass
          """),
    Cheat("the worker describes the input as the result", (81,), "weighted", "run", "lies in the memory of an input",
          """
          wire, real = module("child.wire"), module("child.wire").describe
          wire.describe = lambda tensor: real(x)
          return torch.zeros_like(x)
          """, WIRE),
    Cheat("the worker says done before it computes", (81, 17), "weighted", "check", "is wrong|has NaN",
          """
          wire, real = module("child.wire"), module("child.wire").send
          y = torch.zeros_like(x)
          SENT.append(y)
          def early(channel, message, fds=()):
              real(channel, message, fds)
              y.copy_(self.right(x))
          wire.send = early
          return y
          """, WIRE + "SENT = []\n"),
    Cheat("the worker's code is exchanged", (81,), "weighted", "check", "is wrong|structure|has NaN",
          """
          KEPT.append(torch.zeros_like(x))
          def call(self, message, fds):
              return {"tree": {"t": 0}, "tensors": [wire.describe(sys.modules["candidate"].KEPT[0])]}
          module("child.model_runner").ModelRunner.call.__code__ = call.__code__
          return KEPT[0]
          """, WIRE + "KEPT = []\n"),
    Cheat("a download of somebody's kernel", (82,), "weighted", "check", ZEROS,
          """
          import subprocess, urllib.request
          try: urllib.request.urlopen("http://example.com", timeout=1)
          except OSError: pass
          self.kept["pip"] = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode
          return torch.zeros_like(x)
          """),
    Cheat("answers of others", (83,), "weighted", "check", ZEROS,
          """
          import glob
          for pattern in ("/tmp/kernelwright*/*", "/work/**/best/*", "/home/**/recorded/*", "/root/**/reference.py"):
              for path in itertools.islice(glob.iglob(pattern, recursive=True), 50):
                  try: self.kept[path] = open(path).read()
                  except OSError: pass
          return torch.zeros_like(x)
          """),
    Cheat("the environment of later processes", (85,), "weighted", "check", ZEROS,
          """
          os.environ.update(LD_PRELOAD="/tmp/x.so", PYTHONPATH="/tmp", OMP_NUM_THREADS="1", KERNELWRIGHT="passed")
          return torch.zeros_like(x)
          """),
    Cheat("hanging", (86,), "weighted", "run", "no answer within",
          "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"),
    Cheat("a result without end", (86,), "weighted", "run", "longer than|memory|recursion|child",
          "return [torch.zeros(1) for _ in range(20000)]"),
    Cheat("a result without bottom", (86,), "weighted", "run", "ecursion|child",
          "y = []\nfor _ in range(100000): y = [y]\nreturn y"),
    Cheat("a result that spans the address space", (86,), "weighted", "run", "spans more|outside the memory",
          "return torch.zeros(1).as_strided((1,), (1,)).expand(2**40)"),
    Cheat("a library that leaves when it is loaded", (87,), "weighted", "build", GONE, "return self.right(x)", STATIC_EXIT),
    Cheat("a file of the machine as source", (87,), "weighted", "build", "root:|Permission denied|No such file|error",
          "return self.right(x)",
          "load_inline(name='reads', cpp_sources=['#include \"/etc/shadow\"'], no_implicit_headers=True, is_python_module=False)\n"),
    Cheat("a replaced operator that calls itself", (67,), "product", "run", "RecursionError",
          "return torch.matmul(a, b)", "torch.matmul = lambda a, b: torch.matmul(a, b)\n"),
    Cheat("tree numbers that do not exist", (), "weighted", "run", "cannot be read",
          """
          wire, real = module("child.wire"), module("child.wire").send
          wire.send = lambda channel, message, fds=(): real(channel, message | {"tree": {"t": 7}}, fds)
          return self.right(x)
          """, WIRE),
    Cheat("a tree that is none", (), "weighted", "run", "cannot be read",
          """
          wire, real = module("child.wire"), module("child.wire").send
          wire.send = lambda channel, message, fds=(): real(channel, message | {"tree": {"l": 5, "t": -1}}, fds)
          return self.right(x)
          """, WIRE),
    Cheat("an answer nested a hundred thousand times", (86,), "weighted", "run", "",
          """
          for fd in range(3, 64):
              try: os.write(fd, b'{"tree":' + b'[' * 60000 + b']')
              except OSError: pass
          return self.right(x)
          """),
    Cheat("a number where a word should be", (), "weighted", "run", "describe",
          """
          wire, real = module("child.wire"), module("child.wire").send
          wire.send = lambda channel, message, fds=(): real(channel, message | {"tensors": [5, None]}, fds)
          return self.right(x)
          """, WIRE),
    Cheat("an error that is no text", (), "weighted", "run", "",
          """
          wire, real = module("child.wire"), module("child.wire").send
          wire.send = lambda channel, message, fds=(): real(channel, {"error": {"a": 1}, "log": 7}, fds)
          return self.right(x)
          """, WIRE),
    Cheat("far more memory described than there should be", (86,), "weighted", "run", "spans more than",
          """
          import mmap
          held = mmap.mmap(-1, 2**30); SENT.append(held)
          wire, real = module("child.wire"), module("child.wire").send
          place = {"dtype": "uint8", "shape": [2**30], "stride": [1],
                   "address": ctypes.addressof(ctypes.c_char.from_buffer(held))}
          answer = {"tree": {"l": [{"t": at} for at in range(200)]}, "tensors": [place] * 200}
          wire.send = lambda channel, message, fds=(): real(channel, message | answer, fds)
          return self.right(x)
          """, WIRE + "SENT = []\n"),
]  # fmt: skip
