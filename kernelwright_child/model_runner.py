"""A model in a child with its weights, inputs and calls: the handlers that worker and reference share."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from kernelwright_child import builder, wire
from kernelwright_child.models import (
    cast_model,
    constant_of,
    construct,
    differentiate,
    run_source,
    shared_tensors,
    weights_of,
)
from kernelwright_child.observe import machine_code, observe
from kernelwright_child.wire import Handler, Message

LARGEST_SMALL, SMALL_CHUNKS = 2048, 96


class ModelRunner:
    def __init__(self, unbuilt: Callable[[], object] = lambda: None) -> None:
        self.unbuilt = unbuilt
        """Called where the candidate requests an extension that was not built."""
        self.model: Any = None
        self.run: Any = None
        """The callable of a call: the model, or a compiled form of it."""
        self.order: list[tuple[str, torch.Size]] = []
        """The model's own names of the judge's weights, in the judge's order and with its shapes."""
        self.constructor: Callable[[], Any] = torch.nn.Module
        """Makes a model of the loaded entry with the given arguments."""
        self.dtype: str | None = None
        self.device: str | None = None
        """The device of the model; None for a processor."""
        self.earlier: list[torch.nn.Module | None] = []
        """Replaced models, kept alive so that no other takes their place in memory."""
        self.follows: list[tuple[int, str]] = []
        """Weights that `restore` resets: the judge's number, and a name in results, empty for none."""
        self.followed: list[tuple[str, torch.nn.Module, str, torch.Tensor, torch.Tensor]] = []
        """The same in the model: the name in results, module, attribute, tensor, and its value before a call."""
        self.shared: list[torch.Tensor] = []
        self.results: Any = None

    def handlers(self) -> dict[str, Handler]:
        return {
            "load": self.load,
            "construct seeded": self.construct_seeded,
            "replace constants": self.replace_constants,
            "weights": self.weights,
            "share inputs": self.share_inputs,
            "call": self.call,
            "backward": self.backward,
            "reserve": self.reserve,
            "state": self.state,
            "follow": self.follow,
            "restore": self.restore,
            "observe": self.observe,
            "machine code": lambda message, fds: {"functions": machine_code(message["command"])},
            "nothing": lambda message, fds: {},
        }

    def load(self, message: Message, fds: list[int]) -> Message:
        """Run the source and construct the model, under a seed if one is given. Constructor tensors come in `fds`."""
        set_threads(message["threads"])
        builder.reuse(message["built"], self.unbuilt)
        tensors = shared_tensors(fds[0], message["specs"]) if fds else []
        # A second OpenMP library of the candidate counts the cores when it is loaded, and must see them all.
        with on_cores(message["cores"]):
            namespace = run_source(message["source"], "candidate")
            entry, arguments = namespace[message["entry"]], wire.unpack(message["arguments"], tensors)
            self.constructor, self.dtype = lambda: construct(entry, arguments), message.get("dtype")
            self.construct(message.get("seed"), message.get("vary", False))
        return {}

    def construct(self, seed: int | None, vary: bool = False) -> dict[str, torch.Tensor]:
        """Construct another model under this seed, on the same device; return its state as constructed.

        `vary`: draw the constants of torch's layers.
        """
        if seed is not None:
            torch.manual_seed(seed)
        with constants_drawn() if vary else nullcontext():
            model = self.constructor()
        cast_model(model, self.dtype)
        state: dict[str, torch.Tensor] = dict(model.state_dict())
        self.model = self.run = model if self.device is None else model.to(self.device)
        return state

    def construct_seeded(self, message: Message, fds: list[int]) -> Message:
        self.earlier.append(self.model)
        self.construct(message["seed"], message["vary"])
        return {}

    def replace_constants(self, message: Message, fds: list[int]) -> Message:
        """Replace every weight that consists of one of the given constants by the values for its size."""
        given = list(zip(message["constants"], shared_tensors(fds[0], message["specs"]), strict=True))
        only = message["only"]
        for name, weight in self.model.state_dict().items():
            for constant, values in given if only is None or name in only else ():
                if weight.numel() == values.numel() and constant_of(weight) == constant:
                    weight.copy_(values.view(weight.shape))
                    break
        return {}

    def weights(self, message: Message, fds: list[int]) -> Message:
        """Copy the reference's parameters and buffers in, by name where all names match, else by order and shape."""
        self.restore({}, [])
        given = dict(zip(message["names"], shared_tensors(fds[0], message["specs"]), strict=True))
        own = self.model.state_dict()
        by_name = own.keys() == given.keys() and all(own[name].shape == given[name].shape for name in own)
        names = list(given) if by_name else _by_order(own, given)
        values = zip(names, given.values(), strict=True)
        self.model.load_state_dict({name: value.view(own[name].shape).clone() for name, value in values})
        self.order = [(name, value.shape) for name, value in zip(names, given.values(), strict=True)]
        self.follow({"weights": self.follows}, [])
        return {"how": "by name" if by_name else "by order"}

    def share_inputs(self, message: Message, fds: list[int]) -> Message:
        self.shared = shared_tensors(fds[0], message["specs"])
        return {}

    def observe(self, message: Message, fds: list[int]) -> Message:
        run, values = self.run, wire.unpack(message["arguments"], self.shared)
        if message["gradients"]:
            weights = weights_of(self.model, self.order)
            return {"observed": observe(lambda: differentiate(run, weights, values))}
        given = [(self.shared[index], self.shared[index].clone()) for index in message.get("changes", ())]

        def restore() -> None:
            self.restore({}, [])
            for place, value in given:
                place.copy_(value)

        with torch.no_grad():
            return {"observed": observe(lambda: run(*values), restore)}

    def reserve(self, message: Message, fds: list[int]) -> Message:
        """Take and free this many bytes, since fresh pages cost a fault for every 4 KiB.

        They hold NaN for floating types, so that an unwritten result is not zero by chance.
        """
        stock_small_chunks()
        torch.empty(message["bytes"], dtype=torch.uint8).fill_(0xFF)
        return {}

    def call(self, message: Message, fds: list[int]) -> Message:
        """Call the model on the shared inputs and describe its outputs, which stay alive until the next call."""
        arguments = wire.unpack(message["arguments"], self.shared)
        self.results = None
        seed_draws(message)
        with torch.no_grad():
            self.results = self.with_state(self.run(*arguments))
        return describe_result(self.results)

    def follow(self, message: Message, fds: list[int]) -> Message:
        """Include these weights in results after each call, and let `restore` reset them to their present values."""
        self.follows, self.followed = message["weights"], []
        for number, label in self.follows:
            path, _, name = self.order[number][0].rpartition(".")
            module = self.model.get_submodule(path)
            tensor = getattr(module, name)
            value = torch.empty_like(tensor, device="cpu").copy_(tensor.detach())
            self.followed.append((label, module, name, tensor, value))
        return {}

    def restore(self, message: Message, fds: list[int]) -> Message:
        for _, module, name, tensor, value in self.followed:
            tensor.detach().copy_(value)
            setattr(module, name, tensor)
        return {}

    def with_state(self, result: Any) -> Any:
        state = {label: getattr(module, name) for label, module, name, *_ in self.followed if label}
        return {wire.RESULT: result} | state if state else result

    def state(self, message: Message, fds: list[int]) -> Message:
        """Return the buffers after the calls, or all weights where some are followed, in the judge's order."""
        own = self.model.state_dict() if self.follows else dict(self.model.named_buffers(remove_duplicate=False))
        self.results = [own[name] for name, _ in self.order if name in own]
        return describe_result(self.results)

    def backward(self, message: Message, fds: list[int]) -> Message:
        """Run forward and backward on the shared inputs, from the shared gradients of the outputs.

        Returns outputs, and gradients of inputs and of weights, these in the judge's order; None for no gradient.
        """
        values = wire.unpack(message["arguments"], self.shared)
        self.results = None
        seed_draws(message)
        self.results = differentiate(self.run, weights_of(self.model, self.order), values)
        return describe_result(self.results)


@contextmanager
def constants_drawn() -> Iterator[None]:
    """Make torch's layers draw their constants, so that these depend on the seed too."""
    norm = torch.nn.modules.batchnorm._NormBase
    names, reset = ("ones_", "zeros_", "constant_"), norm.reset_running_stats
    plain = {name: getattr(torch.nn.init, name) for name in names}

    def drawn(name: str) -> Callable[..., torch.Tensor]:
        def fill(tensor: torch.Tensor, *value: float, **named: float) -> torch.Tensor:
            filled: torch.Tensor = plain[name](tensor, *value, **named)
            with torch.no_grad():
                noise = torch.rand(filled.shape).to(filled)
                return filled.mul_(0.5 + noise).add_(noise - 0.5 if not filled.any() else 0.0)

        return fill

    def reset_drawn(layer: Any) -> None:
        reset(layer)
        if layer.track_running_stats:
            layer.running_mean.uniform_(-0.5, 0.5)
            layer.running_var.uniform_(0.5, 1.5)

    for name in names:
        setattr(torch.nn.init, name, drawn(name))
    setattr(norm, "reset_running_stats", reset_drawn)  # noqa: B010
    try:
        yield
    finally:
        for name in names:
            setattr(torch.nn.init, name, plain[name])
        setattr(norm, "reset_running_stats", reset)  # noqa: B010


def seed_draws(message: Message) -> None:
    """Seed the draws of the call itself, where the judge sends a seed: for references that draw in `forward`."""
    if "seed" in message:
        torch.manual_seed(message["seed"])


def set_threads(count: int) -> None:
    """Have torch compute on so many threads; a child with a GPU does so since it was made ready."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.set_num_threads(count)


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Move this thread from the core of torch's OpenMP to these cores for the block; without cores it stays."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or bound)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)


def stock_small_chunks() -> None:
    """Leave the C library free chunks of every small size.

    Otherwise a small request takes part of the large chunk of the last result, and the next result takes fresh pages.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for size in range(16, LARGEST_SMALL + 1, 16):
        chunks = [libc.malloc(size) for _ in range(SMALL_CHUNKS)]
        for chunk in chunks[::2]:  # the neighbours stay, so that free chunks are not joined
            libc.free(chunk)


def describe_result(value: Any) -> Message:
    tensors: list[torch.Tensor] = []
    tree = wire.pack(value, tensors)
    return {"tree": tree, "tensors": [wire.describe(tensor) for tensor in tensors]}


def _by_order(own: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> list[str]:
    """Return the model's own names in the judge's order; shapes may differ only by axes of size one."""
    mine = [f"{name}{list(value.shape)}" for name, value in own.items()]
    theirs = [f"{name}{list(value.shape)}" for name, value in given.items()]
    pairs = zip(own.values(), given.values(), strict=False)
    if len(own) != len(given) or any(_squeezed(a) != _squeezed(b) for a, b in pairs):
        raise ValueError(
            f"the weights of ModelNew ({', '.join(mine) or 'none'}) match those of Model "
            f"({', '.join(theirs) or 'none'}) neither by name nor by order and shape"
        )
    return list(own)


def _squeezed(tensor: torch.Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]
