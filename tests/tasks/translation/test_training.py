"""The translation task on the emulator, against plain fairseq training and a slow reference."""

import io

import pytest
import torch
import torch.nn.functional as F

from pipemare_exp import methods, optimizers
from pipemare_exp.models import fairseq_door as door
from pipemare_exp.models import transformer
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Execution
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.units import choose_boundaries, weight_units
from pipemare_exp.pipeline.shape import Pipeline
from tests.tasks.translation.two_weight_autograd import gradient

# fairseq's decoder gives torch its causal mask as numbers and its padding mask as booleans.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")

ADAMW = {"betas": (0.9, 0.98), "weight_decay": 0.01}


def emulator_of(task, model, method, stages=None, **options):
    units = weight_units(model, task.probe)
    boundaries = choose_boundaries([unit.numel for unit in units], stages or len(units))
    make = optimizers.optimizer("adamw", **ADAMW)
    return Emulator(model, Pipeline(units, boundaries, task.microbatches), method, make, **options)


def gradients(task, model, microbatches):
    model.zero_grad()
    total = 0.0
    for microbatch in microbatches:
        if microbatch is not None:
            loss = task.loss(model, microbatch)
            loss.backward()
            total += float(loss.detach())
    return total, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("tying", "stages"), [("none", None), ("decoder", 5)])
def test_without_delay_it_is_plain_fairseq_training(task_of, tying, stages):
    """fairseq's own model class, criterion, batches; torch.optim.AdamW; the same dropout keys: equal bit for bit."""
    task = task_of({"tying": tying})
    emulated = task.build_model().train()
    plain = door.TransformerModel.build_model(
        door.architecture(
            **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
               {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}.items()},
            dropout=0.1,
            share_decoder_input_output_embed=tying == "decoder",
        ),
        door.languages(task.source, task.target),
    ).train()  # fmt: skip
    plain.load_state_dict(emulated.state_dict())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.0, foreach=True, **ADAMW)
    criterion = door.criterion(task.target, 0.1)
    keyed = KeyedDropout(plain, 9, torch.device("cpu"))
    fast = emulator_of(task, emulated, methods.build("gpipe"), stages, seed=9)
    step = 0
    for epoch in range(2):
        for minibatch in task.minibatches(epoch):
            rate = 1e-3 * (1 + step % 3)
            loss = fast.step(minibatch, task.loss, rate)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=False)
            tokens = sum(microbatch["ntokens"] for microbatch in minibatch if microbatch)
            expected = torch.zeros(())
            for n, microbatch in enumerate(minibatch):
                if microbatch is not None:
                    with keyed.at(step, n):
                        part = criterion(plain, microbatch)[0] / tokens
                    part.backward()
                    expected = expected + part.detach()
            optimizer.step()
            assert torch.equal(loss, expected)
            step += 1
    assert step > 10
    theirs = dict(plain.named_parameters())
    for name, weight in emulated.named_parameters():
        assert torch.equal(weight, theirs[name]), name


@pytest.mark.parametrize("microbatches", [2, 7, 40])
def test_gradient_does_not_depend_on_the_split(task_of, microbatches):
    whole, parts = task_of({"dropout": 0.0}, microbatches=1), task_of({"dropout": 0.0}, microbatches=microbatches)
    model = whole.build_model().train()
    for index in (0, len(whole.batches) // 2, len(whole.batches) - 1):
        one = whole.split_minibatch(whole.batches[index].tolist())
        many = parts.split_minibatch(parts.batches[index].tolist())
        assert sum(m["nsentences"] for m in many if m) == one[0]["nsentences"]
        loss, expected = gradients(whole, model, one)
        split_loss, got = gradients(parts, model, many)
        assert split_loss == pytest.approx(loss, rel=1e-6)
        for name, grad in expected.items():
            torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-7, msg=name)


def test_too_few_sentences_leave_microbatches_empty(task_of):
    task = task_of(microbatches=7)
    minibatch = task.split_minibatch([0, 1, 2])
    assert [m is None for m in minibatch] == [False] * 3 + [True] * 4
    model = task.build_model().train()
    fast = emulator_of(task, model, methods.build("pipemare", decay=0.2))
    before = [w.clone() for w in fast.flat_weights()]
    assert torch.isfinite(fast.step(minibatch, task.loss, 1e-3)) and fast.version == 1
    assert any(not torch.equal(a, b) for a, b in zip(before, fast.flat_weights(), strict=True))


def test_tokens_of_the_minibatch_normalise_once(task_of):
    """One sentence of 1 word beside one of 40: the mean over tokens, not the mean of microbatches' means."""
    task = task_of({"dropout": 0.0}, microbatches=2)
    model = task.build_model().eval()
    pairs = task.split("train")
    words = torch.arange(4, 14)
    short = {"id": 0, "source": torch.tensor([4, 2]), "target": torch.tensor([5, 2])}
    long = {"id": 1, "source": torch.cat([words, torch.tensor([2])]),
            "target": torch.cat([words.repeat(4), torch.tensor([2])])}  # fmt: skip
    samples = [pairs.collater([s]) for s in (short, long)]
    sums, tokens = [], [2, 41]
    for sample in samples:
        log_p = F.log_softmax(model(*task.inputs(sample)), -1)[0]
        labels = sample["target"][0]
        smooth = 0.1 / (log_p.shape[1] - 1)
        picked = log_p[torch.arange(len(labels)), labels]
        sums.append(-((1 - 0.1 - smooth) * picked + smooth * log_p.sum(1)).sum())
    total = sum(task.loss(model, sample | {"minibatch_tokens": 43}) for sample in samples)
    assert [sample["ntokens"] for sample in samples] == tokens
    assert float(total.detach()) == pytest.approx(float(sum(sums).detach()) / 43, rel=1e-5)
    means = float((sums[0] / 2 + sums[1] / 41).detach()) / 2
    assert abs(means / float(total.detach()) - 1) > 0.003, "the two normalisations would not be told apart"


def test_gradient_of_a_tied_weight_is_the_sum_of_both_uses(task_of):
    tied, free = task_of({"tying": "decoder", "dropout": 0.0}), task_of({"tying": "none", "dropout": 0.0})
    one, two = tied.build_model().eval(), free.build_model().eval()
    two.load_state_dict(one.state_dict())  # the projection gets the embedding's values, as a weight of its own
    microbatches = tied.split_minibatch(tied.batches[0].tolist())
    _, together = gradients(tied, one, microbatches)
    _, apart = gradients(free, two, microbatches)
    shared = together.pop("decoder.embed_tokens.weight")
    uses = [apart.pop(name) for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")]
    assert all(float(use.abs().max()) > 0 for use in uses)
    torch.testing.assert_close(shared, uses[0] + uses[1], rtol=1e-5, atol=1e-8)
    for name, grad in together.items():
        torch.testing.assert_close(grad, apart[name])


def double_loss(model, microbatch):
    """Label-smoothed cross entropy in double precision (fairseq's takes the logarithms in single)."""
    source, lengths, previous, target, tokens = microbatch
    logits = model(source, lengths, previous).flatten(0, 1)
    return F.cross_entropy(logits, target.flatten(), ignore_index=1, label_smoothing=0.1, reduction="sum") / tokens


@pytest.mark.parametrize("tying", ["none", "decoder", "all"])
@pytest.mark.parametrize("label", ["pipedream", "async", "t1+t2", "t1+t2+t3"])
def test_methods_against_the_slow_reference(task_of, small, joint, tying, label):
    """Every version kept, forward and backward given their weights one by one; weights equal to 1e-9 for 20 steps."""
    from tests.pipeline.reference import Adam, Rule, Trainer

    task = task_of({"tying": tying, "dropout": 0.0}, data=joint if tying == "all" else small, microbatches=3)
    minibatches = [m for epoch in range(2) for m in task.minibatches(epoch)][:20]
    plain = [
        [m and (*task.inputs(m), m["target"], m["minibatch_tokens"]) for m in minibatch] for minibatch in minibatches
    ]
    model, twin = task.build_model().double().train(), task.build_model().double().train()
    units = weight_units(model, task.probe)
    boundaries = choose_boundaries([unit.numel for unit in units], 9)
    stages = [
        [name for unit in units[a:b] for name in unit.parameters]
        for a, b in zip(boundaries, [*boundaries[1:], len(units)], strict=True)
    ]
    k, decay, warmup = (6, 0.3, 5 if label.endswith("t3") else 0) if "t1" in label else (0, None, 0)
    kind = "pipedream" if label == "pipedream" else "pipemare"
    rule = Rule(kind, 9, 3, "duplex", k, decay, warmup)
    exchanged = []

    def reference_gradient(forward, backward, microbatch, step, n):
        value, grads, count = gradient(twin, forward, backward, lambda m: double_loss(m, microbatch))
        exchanged.append(count)
        return value, grads

    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    slow = Trainer(weights, stages, rule, Adam((0.9, 0.98), 1e-5, 0.01, decoupled=True), reference_gradient)
    options = {"lr_rescheduling_steps": k, "decay": decay, "warmup_steps": warmup} if kind == "pipemare" else {}
    fast = Emulator(
        model, Pipeline(units, boundaries, 3), methods.build(kind, **options),
        optimizers.optimizer("adamw", betas=(0.9, 0.98), eps=1e-5, weight_decay=0.01),
        execution=Execution(beside=label in ("async", "t1+t2")),  # the same bits: emulator/test_beside.py
    )  # fmt: skip
    for step, minibatch in enumerate(plain):
        rate = 2e-3 * (1 + step % 2)
        got, expected = float(fast.step(minibatch, double_loss, rate)), slow.step(minibatch, rate)
        assert got == pytest.approx(expected, rel=1e-9)
        now = slow.weights()
        for names, flat in zip(stages, fast.flat_weights(), strict=True):
            whole = torch.cat([now[name].flatten() for name in names])
            torch.testing.assert_close(flat, whole, rtol=0, atol=1e-9)
    # q, k, v, out, two norms, two linear layers of a layer, and the projection: the hooks did see the weights
    assert min(exchanged) >= 6 * 2


def test_the_reference_tells_the_backwards_weights_apart(task_of):
    """With other weights in the backward the reference's gradient changes, in every weight but the last unit's."""
    task = task_of({"dropout": 0.0})
    model = task.build_model().double()
    microbatch = next(m for m in task.split_minibatch(task.batches[0].tolist()) if m)
    plain = (*task.inputs(microbatch), microbatch["target"], microbatch["minibatch_tokens"])
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    other = {name: w * 1.5 for name, w in weights.items()}
    _, same, _ = gradient(model, weights, weights, lambda m: double_loss(m, plain))
    _, changed, _ = gradient(model, weights, other, lambda m: double_loss(m, plain))
    equal = [name for name in same if torch.equal(same[name], changed[name])]
    assert equal == ["decoder.output_projection.weight"]


@pytest.mark.parametrize("stop", [1, 7, 17])
def test_resume_in_mid_epoch_is_bitwise(task_of, stop):
    """Dropout on, T1+T2+T3; the state goes through a file, everything else is made anew."""

    def fresh():
        task = task_of({"tying": "decoder"}, seed=3)
        method = methods.build("pipemare", lr_rescheduling_steps=9, decay=0.3, warmup_steps=4)
        return task, emulator_of(task, task.build_model().train(), method, seed=3)

    def run(task, fast, steps):
        losses = []
        while len(losses) < steps:
            epoch, index = divmod(fast.version, task.steps_per_epoch)
            for minibatch in task.minibatches(epoch, start=index):
                losses.append(fast.step(minibatch, task.loss, 2e-3))
                if len(losses) == steps:
                    break
        return losses

    task, whole = fresh()
    assert stop % task.steps_per_epoch, "the stop is to lie inside an epoch"
    expected = run(task, whole, 22)
    task, first = fresh()
    run(task, first, stop)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    task, second = fresh()
    second.load_state_dict(torch.load(file, weights_only=True))
    got = run(task, second, 22 - stop)
    assert all(torch.equal(a, b) for a, b in zip(expected[stop:], got, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.flat_weights(), second.flat_weights(), strict=True))


def test_dropout_masks_do_not_depend_on_the_cut(task_of):
    task = task_of({"dropout": 0.3, "attention_dropout": 0.2})
    losses = []
    for stages in (1, 4, None):
        fast = emulator_of(task, task.build_model().train(), methods.build("gpipe"), stages, seed=1)
        torch.randn(stages or 7)  # other draws in between
        losses.append([fast.step(m, task.loss, 1e-3) for m in list(task.minibatches(0))[:4]])
    assert all(torch.equal(a, b) for other in losses[1:] for a, b in zip(losses[0], other, strict=True))


def test_probe_and_evaluation_leave_no_trace(task_of):
    task = task_of()
    model = task.build_model().train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    task.probe(model)
    model.eval()
    with torch.no_grad():
        first, second = task.evaluate(model), task.evaluate(model)
    assert first == second and set(first) == {"loss", "bleu"}
    model.train()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert {m.beam_size for m in model.modules() if isinstance(m, door.MultiheadAttention)} == {1}
    assert isinstance(model, transformer.Transformer) and model.training
