"""Messages between ranks: what is packed comes out, with shapes, dtypes, strides and marks."""

from __future__ import annotations

import pytest
import torch

from pipemare_exp.pipeline.runtime.messages import Message, block_bytes, pack, pack_whole, unpack, unpack_whole

CPU = torch.device("cpu")

TENSORS = {
    "plain": lambda: torch.randn(2, 3),
    "wants a gradient": lambda: torch.randn(4).requires_grad_(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one channel": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(3, 4, 5).transpose(0, 1),
    "mask": lambda: torch.tensor([[True, False], [False, False]]),
    "tokens": lambda: torch.arange(7),
    "scalar": lambda: torch.tensor(3.5, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "nothing in it": lambda: torch.zeros(0, 3),
    "every second": lambda: torch.arange(9.0)[::2],
    "expanded": lambda: torch.ones(3, 1).expand(3, 4),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back(name: str) -> None:
    tensor = TENSORS[name]()
    ints, block = pack(Message(1, 2, 3, (None, tensor), (4, 5)), CPU)
    assert block is not None and block.nbytes == block_bytes(ints)
    message = unpack(ints, block)
    assert (message.kind, message.stage, message.index, message.notes) == (1, 2, 3, (4, 5))
    absent, back = message.tensors
    assert absent is None and torch.equal(back, tensor) and back.dtype == tensor.dtype
    assert message.grads == (False, tensor.requires_grad)
    if name not in ("every second", "expanded"):  # those are not dense: they come back in the plain layout
        assert back.stride() == tensor.stride()


def test_changing_what_was_sent_changes_nothing() -> None:
    tensor = torch.zeros(4)
    ints, block = pack(Message(1, tensors=(tensor,)), CPU)
    tensor += 1
    assert unpack(ints, block).tensors[0].sum() == 0


def test_tensors_begin_on_cache_lines() -> None:
    ints, block = pack(Message(1, tensors=(torch.ones(3), torch.ones(5), torch.ones(1))), CPU)
    offsets = [tensor.data_ptr() - block.data_ptr() for tensor in unpack(ints, block).tensors]
    assert offsets == [0, 64, 128]


def test_an_empty_microbatch_and_an_empty_tuple_differ() -> None:
    assert unpack(*pack(Message(1, tensors=None), CPU)).tensors is None
    assert unpack(*pack(Message(1, tensors=()), CPU)).tensors == ()


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_whole_message_in_a_buffer_that_is_longer(count: int) -> None:
    tensors = tuple(torch.full((2, 2), float(k)) for k in range(count))
    whole = pack_whole(Message(7, 8, 9, (*tensors, None), (1, 2)))
    message = unpack_whole(torch.cat([whole, torch.full((100,), 77, dtype=torch.uint8)]))
    assert (message.kind, message.stage, message.index, message.notes) == (7, 8, 9, (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(message.tensors[:-1], tensors, strict=True))
    assert message.tensors[-1] is None
    assert all((tensor.data_ptr() - tensors_begin(message)) % 64 == 0 for tensor in message.tensors[:-1])


def tensors_begin(message: Message) -> int:
    return message.tensors[0].data_ptr()


def test_a_dtype_that_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="complex64"):
        pack(Message(1, tensors=(torch.ones(2, dtype=torch.complex64),)), CPU)
