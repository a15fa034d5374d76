"""bf16: parameters refilled from fp32 masters, checked against a slow reference; TF32 and fp32 on request."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import config_hash, identity
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.training import assemble
from pipemare_exp.pipeline.weights.precision import LOW, allow_tf32
from tests.pipeline.reference import SGD
from tests.pipeline.toys import emulator, loss, minibatches, mixed_net, rule, same

SHAPE, N, CUT = (2, 6, 6), 4, [0, 1, 2, 3, 4, 5]


def built(label, **options):
    net = mixed_net(torch.float32)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    described = rule(label, 6, N, "duplex", warmup=3)
    optimizer = SGD(0.9, weight_decay=0.01)
    return emulator(net, torch.zeros(2, *SHAPE), CUT, described, optimizer, N, precision="bf16", **options)


@pytest.mark.parametrize("label", ["gpipe", "pipedream", "async", "t1+t2+t3"])
def test_every_pass_computes_with_its_weights_rounded_once(label):
    """Before each forward and backward the bf16 parameters are round(w_version + coef delta), from copies of all."""
    made = built(label)
    versions, deltas, seen = [[w.clone() for w in made.weights.history.live]], [], []
    load = made.weights.load

    def checked(reads, image=None):
        load(reads, image)
        seen.append(list(reads))
        for stage, read in enumerate(reads):
            exact = versions[read.version][stage].clone()
            if read.buffer is not None:
                exact.add_(deltas[-1][stage], alpha=read.coef)
            begin = made.flat.stages[stage].storage_offset()
            assert torch.equal(made.flat.low[begin : begin + exact.numel()], exact.to(LOW)), (stage, read)

    made.weights.load = checked
    for minibatch in minibatches(SHAPE, N, 9, torch.float32):
        delta = made.method.buffers.get("delta")
        deltas.append(None if delta is None else [None if d is None else d.clone() for d in delta])
        made.step(minibatch, loss, 0.05)
        versions.append([w.clone() for w in made.weights.history.live])
    assert len({tuple(reads) for reads in seen}) >= 9
    if label != "gpipe":
        assert any(len({read.version for read in reads}) > 1 for reads in seen)


def test_parameters_are_bf16_and_masters_sums_and_statistics_fp32():
    made = built("t1+t2")
    for minibatch in minibatches(SHAPE, N, 3, torch.float32, empty=False):
        value = made.step(minibatch, loss, 0.05)
    kinds = {name: parameter.dtype for name, parameter in made.model.named_parameters()}
    batchnorms = [name for name, module in made.model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    norms = {f"{name}.{part}" for name in batchnorms for part in ("weight", "bias")}
    assert kinds == {name: torch.float32 if name in norms else LOW for name in kinds} and norms
    assert value.dtype == made.flat.gradients.dtype == torch.float32
    assert {w.dtype for w in made.flat_weights()} == {torch.float32}
    assert {ring.data.dtype for ring in made.weights.history.rings if ring is not None} == {torch.float32}
    assert all(b.dtype == torch.float32 for b in made.model.buffers() if b.is_floating_point())
    held, plain = made.memory(), made.flat.weights.nbytes
    assert (held["weights"], held["gradients"]) == (1.5 * plain, 1.5 * plain)
    momentum = [state["momentum_buffer"] for state in made.optimizer.state.values()]
    assert momentum and all(buffer.dtype == torch.float32 for buffer in momentum)
    assert not any(torch.equal(w, w.to(LOW).float()) for w in made.flat_weights() if w.numel() > 20)


def test_gradients_of_microbatches_are_summed_in_fp32():
    """The sum is that of each microbatch's bf16 gradient, added in fp32: not that of a bf16 accumulator."""
    made, alone = built("gpipe"), built("gpipe")
    (minibatch,) = minibatches(SHAPE, N, 1, torch.float32, empty=False)
    kept = []
    alone.weights.update = lambda step, rate, observed: kept.append(alone.flat.gradients.clone())
    for one in minibatch:
        alone.step([one, None, None, None], loss, 0.0)
    made.weights.update = lambda step, rate, observed: None
    made.step(minibatch, loss, 0.0)
    total = torch.zeros_like(kept[0])
    for gradient in kept:
        total += gradient
    assert torch.equal(made.flat.gradients, total)
    assert not torch.equal(total, total.to(LOW).float())


def test_loss_falls():
    torch.manual_seed(0)
    images, labels = torch.randn(32, *SHAPE), torch.arange(32) % 3
    made = built("t1+t2")
    parts = [(x, y, 32) for x, y in zip(images.split(8), labels.split(8), strict=True)]
    losses = [float(made.step(parts, loss, 0.05)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    with made.evaluation() as model:
        assert F.cross_entropy(model(images), labels) < 0.7 * losses[0]


def test_checkpoint_and_graphs_give_the_same_bits():
    made, again = built("t1+t2"), built("t1+t2", graphs="on")
    given = [one for one in minibatches(SHAPE, N, 4, torch.float32) for _ in range(2)]
    for minibatch in given[:4]:
        made.step(minibatch, loss, 0.05)
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for minibatch in given[4:]:
        assert float(made.step(minibatch, loss, 0.05)) == float(again.step(minibatch, loss, 0.05))
    assert again.way.captures.captured > 0
    assert same(made.state_dict(), again.state_dict()) and torch.equal(made.flat.low, again.flat.low)


def test_a_moved_parameter_is_noticed():
    made = built("gpipe")
    made.model[0].weight.data = made.model[0].weight.data.clone()
    with pytest.raises(RuntimeError, match="bfloat16"):
        made.flat.check()


def test_autocast_and_a_compiled_part_are_refused():
    made = built("gpipe")
    (minibatch,) = minibatches(SHAPE, N, 1, torch.float32)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
        made.step(minibatch, loss, 0.1)
    net = mixed_net(torch.float32)
    net[0].compile(backend="eager")
    with pytest.raises(UserError, match="compiled"):
        emulator(net, torch.zeros(2, *SHAPE), CUT, rule("async", 6, N, "duplex"), SGD(0.9), N)


SETTINGS = ["task=digits", "method=t1_t2", "tracking=none", "model.width=2", "device=cpu"]


def test_precision_names_a_run_and_its_default_does_not():
    plain = assemble.prepare(load(SETTINGS)).cfg
    said = assemble.prepare(load([*SETTINGS, "precision=fp32", "engine.graphs=off"])).cfg
    low = assemble.prepare(load([*SETTINGS, "precision=bf16"])).cfg
    assert config_hash(plain) == config_hash(said) != config_hash(low)
    assert not {"precision", "graphs"} & (identity(plain).keys() | identity(plain)["engine"].keys())
    assert identity(low)["precision"] == "bf16"


@pytest.mark.parametrize(
    "setting",
    ["pipeline.recompute=2", "engine=runtime", "task=numerals"],
)
def test_bf16_is_refused_where_it_was_not_made_for(setting):
    with pytest.raises(UserError, match="precision=bf16"):
        load([*SETTINGS, "precision=bf16", setting])


def test_fp32_is_fp32_and_tf32_is_a_gpus():
    """torch lets convolutions use TF32 by itself: preparing a run switches it off."""
    allow_tf32(True)
    assemble.prepare(load(SETTINGS))
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(UserError, match="CPU"):
        assemble.prepare(load([*SETTINGS, "precision=tf32"]))
