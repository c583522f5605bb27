"""Candidates with timers that go on while they stand still: SIGCONT undoes a stop, and many slow whoever is timed."""

from tests.hostile.cheats.cheat import Cheat

WAKING = r"""
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static timer_t timer;
static char* stack;
static volatile int called = 1;
static int help(void*);

static long microseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static int helper(void*) {
    cpu_set_t all;
    memset(&all, 255, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    help(nullptr);
    _exit(0);
}

static void woken(int, siginfo_t* from, void*) {
    if (from->si_code != SI_TIMER || called) return;
    clone(helper, stack + 65536, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, nullptr);
}

static void set(long after) {
    itimerspec when = {{0, 0}, {0, after * 1000}};
    timer_settime(timer, 0, &when, nullptr);
}

extern "C" void prepare() {
    stack = (char*) calloc(1, 65536);
    struct sigaction action = {};
    action.sa_sigaction = woken;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGCONT, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
}

extern "C" void begin() {
    called = 1;
    set(0);
    while (waitpid(-1, nullptr, __WALL) > 0);
}

extern "C" void end(long after) {
    called = 0;
    set(after);
}
"""
HOGS = r"""
static int help(void*) {
    for (long until = microseconds() + 50000; !called && microseconds() < until;);
    return 0;
}
"""
FOLLOWS = r"""
static volatile int ready;
static const float* volatile input;
static float* volatile output;
static volatile float last;
static const long COUNT = 32 * 80;

static int help(void*) {
    while (!called && ((volatile const float*) input)[COUNT - 1] == last);
    if (called) return 0;
    usleep(100);
    for (long i = 0; i < COUNT; ++i) output[i] = input[i] > 0 ? input[i] : 0;
    ready = 1;
    return 0;
}

extern "C" long take(const float* x, float* y) {
    int was_ready = ready && x == input && y == output;
    ready = 0;
    return was_ready;
}

extern "C" void leave(const float* x, float* y) {
    input = x;
    output = y;
    last = x[COUNT - 1];
}
"""
LOAD = """
LIBRARY = ctypes.CDLL(load_inline(name="woken", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False,
                                  extra_ldflags=["-lrt"]))
LIBRARY.prepare()
"""
BEGIN = """
LIBRARY.begin()
pauses = self.kept.setdefault("pauses", [])
if self.last:
    pauses.append(time.perf_counter() - self.last)
"""
END = """
later_us = 6e5 * statistics.median(pauses[-4:]) if len(pauses) > 1 else 0
self.last = time.perf_counter()
LIBRARY.end(int(min(later_us, 9e5)))
return y
"""
"""When it has long been stopped, and well before its next call: it learns from the pauses so far."""
CALL = f"{BEGIN}y = self.right(x){END}"
AHEAD = f"""{BEGIN}
y = self.kept.setdefault("y", torch.zeros(32, 80))
arguments = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
if not LIBRARY.take(*arguments):
    y.copy_(self.right(x))
LIBRARY.leave(*arguments)
{END}"""
WAS_WOKEN = "the candidate ran while it was stopped|the child could not be stopped|processes of its own running"
"""The second where the timer comes while the judge is about to stop it, the third where its helper is still there."""


def program(*parts: str) -> str:
    """What a candidate begins with."""
    return f'SOURCE = r"""{"".join(parts)}"""' + LOAD


IGNORED = r"""
#include <signal.h>
#include <time.h>

static const int MOST = 3000;
static timer_t timers[MOST];

extern "C" int make() {
    signal(SIGUSR1, SIG_IGN);
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    for (int i = 0; i < MOST; i++)
        if (timer_create(CLOCK_MONOTONIC, &event, &timers[i]) != 0) return i;
    return MOST;
}

extern "C" void set() {
    for (int i = 0; i < MOST; i++) {
        itimerspec when = {{0, 0}, {0, 1000000 + i * 20000}};
        timer_settime(timers[i], 0, &when, nullptr);
    }
}
"""
LOAD_IGNORED = """
LIBRARY = ctypes.CDLL(load_inline(name="ignored", cpp_sources=[SOURCE], no_implicit_headers=True,
                                  is_python_module=False, extra_ldflags=["-lrt"]))
if (made := LIBRARY.make()) < 3000:
    raise RuntimeError(f"timers to be had: {made}")
"""
INTERRUPTS = Cheat(
    "thousands of timers whose signal is ignored interrupt the core while others are timed on it",
    (23, 25), "positive", "load", "timers to be had: 0", "y = self.right(x)\nLIBRARY.set()\nreturn y",
    f'SOURCE = r"""{IGNORED}"""' + LOAD_IGNORED,
)  # fmt: skip
"""From a millisecond after each call on, for sixty. Nobody is woken, so no witness sees it."""
SETTING_ONLY = program(WAKING, "static int help(void*) { return 0; }")
"""The timer is made, and never set."""
WOKEN = [
    Cheat("a timer wakes it, and what it starts then keeps the machine busy while others are timed",
          (23, 25), "positive", "run|time", WAS_WOKEN, CALL, program(WAKING, HOGS)),
    Cheat("a timer wakes it, and what it starts then follows the next inputs while they are put in place",
          (20,), "positive", "run|time", WAS_WOKEN, AHEAD, program(WAKING, FOLLOWS)),
]  # fmt: skip
