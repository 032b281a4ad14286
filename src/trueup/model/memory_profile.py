"""What tensors hold memory while a program runs, to the byte: every storage from the operator that made it to
the moment the last tensor of it is gone.

Seen are the results of operators, under a TorchDispatchMode. Memory that a kernel takes and gives back before
it returns, such as oneDNN's scratch, is not: it shows in the resident memory beside.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trueup.schema.memory_trace import Held, HeldKind, MemoryTrace

RSS_FROM_BYTES = 1 << 16  # resident memory is read when this much or more comes or goes


@dataclass(slots=True)
class _Open:
    """A storage that is there, until it goes."""

    size_bytes: int
    kind: HeldKind
    module: str
    operator: str
    born: int
    died: int | None = None


class MemoryRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records storages on devices of one kind while it is entered; those that were there before are told to
    it with `claim`. `where` says which module is running. One thread's operators are seen: on a CPU the
    backward pass runs in it too."""

    def __init__(self, device_type: str = "cpu", where: Callable[[], str] = str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where = where
        self._device_type = device_type
        self._now: dict[int, _Open] = {}  # by the address of the storage
        self._all: list[_Open] = []
        self._references: dict[int, weakref.ref[Any]] = {}
        self._events = self._operators = 0
        self._marks: list[tuple[int, str]] = []
        self._rss: list[tuple[int, int]] = []
        self._process = psutil.Process()
        self._nodes: list[tuple[int, str]] = []  # the first node number after an operator, and its module
        self._leaves: dict[int, str] = {}

    def claim(self, tensors: Iterable[tuple[str, torch.Tensor]], kind: HeldKind) -> None:
        """These are of that kind and of that module, whoever made them; a storage that several modules have
        parts of is of the module around them."""
        claimed = dict[int, str]()
        for module, tensor in tensors:
            self._see(tensor, "", kind)
            self._leaves[id(tensor)] = module
            memory = _memory_of(tensor)
            found = None if memory is None else self._now.get(memory.address)
            if memory is not None and found is not None:
                claimed[memory.address] = _around(claimed.get(memory.address, module), module)
                found.kind, found.module = kind, claimed[memory.address]

    def mark(self, part: str) -> None:
        """A part of the work begins."""
        self._marks.append((self._events, part))

    def trace(self) -> MemoryTrace:
        """What was recorded so far."""
        held = tuple(
            Held(one.size_bytes, one.kind, one.module, one.operator, one.born, one.died) for one in self._all
        )
        return MemoryTrace(held, self._events, self._operators, tuple(self._marks), tuple(self._rss))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._operators += 1
        module = self._module()
        operator = str(func.overloadpacket)
        seen = tree_leaves(result)
        if func._schema.is_mutable:  # it may have given a storage another size
            seen += tree_leaves((args, kwargs))
        for tensor in seen:
            if isinstance(tensor, torch.Tensor):
                self._see(tensor, operator, "activations", module)
        return result

    def _module(self) -> str:
        """Of the operator that just ran. In a backward pass that of the forward operator it belongs to: nodes
        are numbered as they are made, just before their operator runs."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            module, following = self.where(), torch._C._autograd._get_sequence_nr()
            if not self._nodes or following > self._nodes[-1][0]:
                self._nodes.append((following, module))
            return module
        leaf = getattr(node, "variable", None)  # of a node that adds up a parameter's gradient
        if leaf is not None:
            return self._leaves.get(id(leaf), "")
        place = bisect_left(self._nodes, (int(node._sequence_nr()) + 1,))
        return self._nodes[place][1] if place < len(self._nodes) else self.where()

    def _see(self, tensor: torch.Tensor, operator: str, kind: HeldKind, module: str = "") -> None:
        memory = _memory_of(tensor) if tensor.device.type == self._device_type else None
        if memory is None:
            return
        known = self._now.get(memory.address)
        if known is not None and known.size_bytes == memory.size_bytes:
            return
        one = _Open(memory.size_bytes, kind, module, operator, self._events)
        self._happened(one.size_bytes)
        self._all.append(one)
        self._now[memory.address] = one
        if memory.address not in self._references:
            gone = partial(self._gone, memory.address)
            self._references[memory.address] = weakref.ref(memory.owner, gone)
        if known is not None:  # made larger or smaller in place: for a moment both were there
            self._go(known)

    def _gone(self, address: int, _: weakref.ref[Any]) -> None:
        self._references.pop(address, None)
        one = self._now.pop(address, None)
        if one is not None:
            self._go(one)

    def _go(self, one: _Open) -> None:
        one.died = self._events
        self._happened(one.size_bytes)

    def _happened(self, size_bytes: int) -> None:
        if size_bytes >= RSS_FROM_BYTES:
            self._rss.append((self._events, self._process.memory_info().rss))
        self._events += 1


def weights_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each with its module's name. A tied one comes once, under its first."""
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        yield name.rpartition(".")[0], tensor


def _around(a: str, b: str) -> str:
    """The innermost module that both are in."""
    both = takewhile(lambda parts: parts[0] == parts[1], zip(a.split("."), b.split("."), strict=False))
    return ".".join(part for part, _ in both)


class _Memory(NamedTuple):
    """`owner`: whose end is the end of the memory, which is at `address` until then."""

    address: int
    size_bytes: int
    owner: Any


def _memory_of(tensor: torch.Tensor) -> _Memory | None:
    """None where it has none of its own, or an empty one."""
    if tensor.is_mkldnn:  # in oneDNN's own layout, which no other tensor has a view of
        return _Memory(id(tensor), int(torch.ops.mkldnn._nbytes(tensor)), tensor)
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have parts, seen for themselves
        return None
    return _Memory(int(storage._cdata), storage.nbytes(), storage) if storage.nbytes() else None
