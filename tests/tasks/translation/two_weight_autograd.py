"""The gradient of any module with one set of weights in the forward and another in the backward.

Every tensor that autograd saves for the backward passes through a hook: those that are (views of) a parameter come
back as the same view of the backward's weights, everything else (activations) as it was saved. No storage is ever
written to, which is how the emulator does it; a mistake in one shows in the other.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def gradient(
    module: nn.Module,
    forward: Mapping[str, Tensor],
    backward: Mapping[str, Tensor],
    loss: Callable[[nn.Module], Tensor],
) -> tuple[Tensor, dict[str, Tensor], int]:
    """(loss, gradient by parameter name, how many saved tensors were exchanged); `module` keeps its storages."""
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        parameter.data = forward[name].detach().clone()
        parameter.grad = None
        names[parameter.untyped_storage().data_ptr()] = name
    exchanged = []

    def pack(tensor: Tensor) -> Any:
        name = names.get(tensor.untyped_storage().data_ptr())
        if name is None:
            return tensor
        exchanged.append(name)
        return name, tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        name, size, stride, offset = packed
        return backward[name].detach().contiguous().as_strided(size, stride, offset)

    with saved_tensors_hooks(pack, unpack):
        value = loss(module)
    value.backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return value.detach(), grads, len(exchanged)
