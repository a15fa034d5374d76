"""A message between ranks: a few integers (the header) and a tuple of tensors (the block), as bytes.

Tensors keep their shape, dtype and strides (kernels round by memory layout), and a mark whether a gradient is wanted;
they may change from message to message. `pack_whole` puts header and block into one buffer, which a receiver can read
without knowing anything about the message before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

ALIGN = 64
"""Bytes. Tensors in a block begin where the allocator would have put them, on a cache line of their own."""

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


class Kind(IntEnum):
    """What a message is. The first three carry a microbatch's activations or gradients from stage to stage."""

    FORWARD, RECOMPUTE, BACKWARD = 1, 2, 3
    LOSS, SNAPSHOT, SAVED, REPORT, HEALTH = 4, 5, 6, 7, 8  # to rank 0
    FAIL, PING, PONG, END, STOP = 9, 10, 11, 12, 13  # about the ranks themselves; no inbox keeps them
    HEADER = 14  # the header of a message whose block comes by NCCL


LONGER = -1
"""In the place of a header's length: the next message is longer than any before."""

NAMES = {
    Kind.FORWARD: "activations",
    Kind.RECOMPUTE: "recomputed activations",
    Kind.BACKWARD: "gradients",
    Kind.LOSS: "the loss",
    Kind.SNAPSHOT: "weights",
    Kind.SAVED: "a saved checkpoint",
    Kind.REPORT: "a report",
    Kind.HEALTH: "the norm of a gradient",
}


@dataclass
class Message:
    """`kind` says what it is, `stage` and `index` whose (above).

    `tensors`: None stands for one that is absent, such as the gradient of a mask; the whole tuple is None for an empty
    microbatch. `notes` are two integers that travel along.
    """

    kind: int
    stage: int = 0
    index: int = 0
    tensors: tuple[Tensor | None, ...] | None = ()
    notes: tuple[int, int] = (0, 0)
    grads: tuple[bool, ...] = field(default=())
    """Which tensors want a gradient, as the sender saw it."""


def layout(tensor: Tensor) -> tuple[int, ...]:
    """The strides that a packed copy has: the tensor's own if they are dense, else the plain ones."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: (pair[1], pair[0])):
        if size == 1:
            continue
        if stride != expected:
            return torch.empty(tensor.shape, device="meta").stride()
        expected *= size
    return tensor.stride()


def pack_whole(message: Message, pin: bool = False) -> Tensor:
    """Header and block in one buffer of bytes on the CPU: the header's length, the header, padding, the block."""
    ints, places, total = _plan(message)
    begin = _front(len(ints))
    buffer = torch.empty(begin + total, dtype=torch.uint8, pin_memory=pin)
    buffer[: 8 * (len(ints) + 1)].view(torch.int64).copy_(torch.tensor([len(ints), *ints]))
    _fill(buffer, places, begin)
    return buffer


def unpack_whole(buffer: Tensor, device: torch.device | None = None) -> Message:
    """The message in a buffer, which may be longer than it; tensors are views of the buffer, or on `device`."""
    count = int(buffer[:8].view(torch.int64))
    ints = buffer[8 : 8 * (count + 1)].view(torch.int64).tolist()
    begin, size = _front(count), block_bytes(ints)
    block = buffer[begin : begin + size]
    return unpack(ints, block if device is None or not size else block.to(device))


def _front(count: int) -> int:
    """Bytes before the block, behind a header of `count` integers and its length."""
    return -(-8 * (count + 1) // ALIGN) * ALIGN


def pack(message: Message, device: torch.device) -> tuple[list[int], Tensor | None]:
    """(header, block of bytes on `device`, or None where no tensor is sent)."""
    ints, places, total = _plan(message)
    if not total:
        return ints, None
    block = torch.empty(total, dtype=torch.uint8, device=device)
    _fill(block, places, 0)
    return ints, block


Places = list[tuple[Tensor, tuple[int, ...], int]]
"""(tensor, its strides in the block, where it begins)"""


def _plan(message: Message) -> tuple[list[int], Places, int]:
    """(header, where the tensors go, bytes of the block)"""
    tensors = message.tensors
    ints = [message.kind, message.stage, message.index, *message.notes, -1 if tensors is None else len(tensors)]
    places: Places = []
    total = 0
    for tensor in tensors or ():
        if tensor is None:
            ints.append(-1)
            continue
        strides = layout(tensor)
        if tensor.dtype not in DTYPES:
            raise TypeError(f"a tensor of {tensor.dtype} cannot be sent between stages")
        ints += [DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape, *strides]
        places.append((tensor, strides, total))
        total += -(-tensor.nbytes // ALIGN) * ALIGN
    return ints, places, max(total, ALIGN) if places else 0


@torch.no_grad()
def _fill(block: Tensor, places: Places, begin: int) -> None:
    for tensor, strides, offset in places:
        if tensor.numel():
            _view(block, tensor.dtype, tuple(tensor.shape), strides, begin + offset).copy_(tensor)


def block_bytes(ints: Sequence[int]) -> int:
    """Bytes of the block that belongs to a header; 0 for none."""
    total, any_tensor = 0, False
    for dtype, _, shape, _ in _described(ints):
        if dtype is not None:
            any_tensor = True
            count = 1
            for size in shape:
                count *= size
            total += -(-count * dtype.itemsize // ALIGN) * ALIGN
    return max(total, ALIGN) if any_tensor else 0


def unpack(ints: Sequence[int], block: Tensor | None) -> Message:
    """The message of a header and its block; its tensors are views of the block."""
    kind, stage, index, *notes = ints[:5]
    if ints[5] < 0:
        return Message(kind, stage, index, None, (notes[0], notes[1]))
    tensors: list[Tensor | None] = []
    grads, offset = [], 0
    for dtype, wants, shape, strides in _described(ints):
        grads.append(wants)
        if dtype is None:
            tensors.append(None)
            continue
        assert block is not None
        count = 1
        for size in shape:
            count *= size
        if count:
            tensors.append(_view(block, dtype, shape, strides, offset))
        else:
            tensors.append(torch.empty(shape, dtype=dtype, device=block.device))
        offset += -(-count * dtype.itemsize // ALIGN) * ALIGN
    return Message(kind, stage, index, tuple(tensors), (notes[0], notes[1]), tuple(grads))


def _described(
    ints: Sequence[int],
) -> list[tuple[torch.dtype | None, bool, tuple[int, ...], tuple[int, ...]]]:
    """(dtype or None, wants a gradient, shape, strides) of every tensor in a header."""
    found: list[tuple[torch.dtype | None, bool, tuple[int, ...], tuple[int, ...]]] = []
    place = 6
    for _ in range(max(ints[5], 0)):
        if ints[place] < 0:
            found.append((None, False, (), ()))
            place += 1
            continue
        dtype, wants, dim = DTYPES[ints[place]], bool(ints[place + 1]), ints[place + 2]
        place += 3
        shape, strides = tuple(ints[place : place + dim]), tuple(ints[place + dim : place + 2 * dim])
        found.append((dtype, wants, shape, strides))
        place += 2 * dim
    return found


def _view(block: Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return block[offset : offset + count * dtype.itemsize].view(dtype).as_strided(shape, strides)


def text_message(kind: int, text: str, index: int = 0, stage: int = 0) -> Message:
    data = text.encode()
    return Message(kind, stage, index, (torch.frombuffer(bytearray(data), dtype=torch.uint8),) if data else ())


def text_of(message: Message) -> str:
    assert message.tensors is not None
    block = message.tensors[0] if message.tensors else None
    return "" if block is None else bytes(block.tolist()).decode()
