"""A message between ranks: a few integers and a tuple of tensors, as one header and one block of bytes.

Tensors keep their shape, dtype and strides (kernels round by memory layout), and a mark whether a gradient is wanted;
they may change from message to message. The header has a fixed length, so that it can be received before anything
about the message is known; what does not fit into it follows in a second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

HEADER = 96
"""Integers in a header: enough for eight tensors of four dimensions."""

ALIGN = 64
"""Bytes. Tensors in a block begin where the allocator would have put them, on a cache line of their own."""

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


@dataclass
class Message:
    """`kind` says what it is, `stage` and `index` whose (see transport.py).

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


def pack(message: Message, device: torch.device, pin: bool = False) -> tuple[list[int], Tensor | None]:
    """(header, block of bytes on `device`, or None where no tensor is sent)."""
    tensors = message.tensors
    ints = [message.kind, message.stage, message.index, *message.notes, -1 if tensors is None else len(tensors)]
    places: list[tuple[Tensor, tuple[int, ...], int]] = []
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
    if not places:
        return ints, None
    block = torch.empty(max(total, ALIGN), dtype=torch.uint8, device=device, pin_memory=pin)
    with torch.no_grad():
        for tensor, strides, offset in places:
            if tensor.numel():
                _view(block, tensor.dtype, tuple(tensor.shape), strides, offset).copy_(tensor)
    return ints, block


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


def _view(
    block: Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return block[offset : offset + count * dtype.itemsize].view(dtype).as_strided(shape, strides)
