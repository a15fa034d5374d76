"""What a configuration holds: one tree of frozen dataclasses, with the bounds of every value beside it.

`load.py` fills this tree from the YAML files in configs/. A field's type is what it accepts (`| None`: may
be left unset); `bounded` and `choice` add its range. Values that one task uses and another does not are
None there, and None is left out of a run's identity, so a new optional field never renames the runs that were
made before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from functools import cache

from pipemare_exp import data, methods
from pipemare_exp.pipeline.method import SWITCHES, Method
from pipemare_exp.settings import bounded, choice

SCALES = ("demo", "laptop", "paper")


@dataclass(frozen=True)
class TaskConfig:
    """Which data set and metric; `label_smoothing` is translation's."""

    name: str = choice("digits", *data.TASKS)
    label_smoothing: float | None = bounded(low=0.0, below=1.0)


@dataclass(frozen=True)
class DataConfig:
    """`batch_size` (examples) or `max_tokens` (translation) is a minibatch's size, not a microbatch's."""

    name: str = choice("digits", *data.TASKS)
    root: str | None = None
    validation: int = bounded(0, low=0)
    """Examples held out of train; above 0 the test set is never looked at."""
    batch_size: int | None = bounded(low=1)
    max_tokens: int | None = bounded(low=1)
    augment: bool = False
    bpe_merges: int | None = bounded(low=1)
    max_length: int | None = bounded(low=1)
    pairs: int | None = bounded(low=1)
    """Sentence pairs to generate (numerals)."""
    block: int | None = bounded(low=1)
    """Tokens of a sequence (language modelling), whose examples are blocks."""
    blocks_per_epoch: int | None = bounded(low=1)
    """Blocks that an epoch takes (language modelling), others in each; None: all of them."""
    text: str | None = None
    """Filled when the data are known: the digest of a text that depends on what is installed (language modelling)."""
    changed: str | None = choice(None, "refuse", "allow")
    """Whether a run may go on with other data than it was trained on, which is then recorded; None is refuse."""
    subset: int | None = bounded(low=1)
    """Filled when the data are known: the training examples, where they are only some of the published set's."""


@dataclass(frozen=True)
class ModelConfig:
    """`name` is looked up by pipemare_exp.models; None means the named model's own value.

    `width` is the channels of a ResNet's first group, or a Transformer's embedding; what follows it is a
    Transformer's. `tying`: which of the embeddings and the output projection share one weight.
    """

    name: str = "digits_resnet"
    width: int | None = bounded(low=1)
    layers: int | None = bounded(low=1)
    feedforward: int | None = bounded(low=1)
    heads: int | None = bounded(low=1)
    dropout: float | None = bounded(low=0.0, below=1.0)
    attention_dropout: float | None = bounded(low=0.0, below=1.0)
    activation_dropout: float | None = bounded(low=0.0, below=1.0)
    tying: str | None = choice(None, "none", "decoder", "all")
    positions: int | None = bounded(low=1)
    """The longest sequence that a GPT has positions for."""


@dataclass(frozen=True)
class LrRescheduling:
    """T1: rate / tau^p with p falling from 1 to 0 over K steps; K is `steps` or `epochs`, never both."""

    enabled: bool = False
    steps: int | None = bounded(low=1)
    epochs: float | None = bounded(above=0.0)


@dataclass(frozen=True)
class DiscrepancyCorrection:
    """T2: gamma = decay^(1/d), where decay is D: how much of delta is left after d steps.

    The default is e^-2: for it the estimate is exact under quadratic drift too, in the limit of large d.
    """

    enabled: bool = False
    decay: float | None = bounded(0.1353352832366127, above=0.0, below=1.0)


@dataclass(frozen=True)
class SyncWarmup:
    """T3: synchronous training for the first M steps; M is `steps` or `epochs`, never both."""

    enabled: bool = False
    steps: int | None = bounded(low=1)
    epochs: float | None = bounded(above=0.0)


@dataclass(frozen=True)
class MethodConfig:
    """Which weights are read, and T1, T2, T3. `label` is derived from the switches, never chosen.

    A method's own options are further fields, see `method_config`.
    """

    name: str = choice("pipemare", *methods.METHODS)
    label: str | None = None
    lr_rescheduling: LrRescheduling = LrRescheduling()
    discrepancy_correction: DiscrepancyCorrection = DiscrepancyCorrection()
    sync_warmup: SyncWarmup = SyncWarmup()

    @property
    def kind(self) -> type[Method]:
        """The method's class, which knows the rest."""
        return methods.find(self.name)

    def on(self) -> list[str]:
        """Which of T1, T2 and T3 are switched on."""
        return [group for group in SWITCHES if getattr(self, group).enabled]


@cache
def method_config(name: str) -> type[MethodConfig]:
    """`MethodConfig` with the own options of the method `name` beside the others. UserError for an unknown name."""
    own = methods.find(name).Options
    return make_dataclass("MethodConfig", [], bases=(own, MethodConfig), frozen=True)


@dataclass(frozen=True)
class PipelineConfig:
    """`stages` None: one per weight unit, or per piece. `boundaries`: the first unit of each stage, computed when
    None.

    `cut`: where a computed boundary may lie, at weight units or only where the model can be cut into pieces; None:
    pieces with recomputation, units without. `recompute`: S, the stages to a recomputation segment; sqrt stands for
    the number near sqrt(P) that holds the fewest activations; None: no recomputation. `split`: each of the `stages` is
    made into so many, each with a part of its weights, for more stages than weight units.
    """

    stages: int | None = bounded(low=1)
    microbatches: int = bounded(8, low=1)
    slots: str = choice("duplex", "duplex", "alternating")
    boundaries: tuple[int, ...] | None = None
    cut: str | None = choice(None, "units", "pieces")
    recompute: int | str | None = field(default=None, metadata={"words": ("sqrt",), "low": 1})
    split: int | None = bounded(low=1)


@dataclass(frozen=True)
class OptimizerConfig:
    """torch.optim's own; `rate` is the base rate before the schedule and T1."""

    name: str = choice("sgd", "sgd", "adam", "adamw", "nadamw")
    rate: float = bounded(0.05, above=0.0)
    momentum: float | None = bounded(low=0.0, below=1.0)
    nesterov: bool | None = None
    weight_decay: float = bounded(0.0, low=0.0)
    decay: str | None = choice(None, "all", "matrices")
    """What decays: all weights, or matrices only, which leaves out biases and norms; None is all."""
    betas: tuple[float, float] | None = None
    eps: float | None = bounded(above=0.0)
    fused: bool = False
    clip: str = choice("none", "none", "stage", "global")
    """global cannot be had in a real asynchronous pipeline: it is an option of the emulation only."""
    clip_norm: float | None = bounded(above=0.0)


@dataclass(frozen=True)
class ScheduleConfig:
    """The rate over all updates. A milestone below 1 is a fraction of the run, else a step."""

    name: str = choice("constant", "constant", "step_decay", "cosine", "inverse_sqrt")
    milestones: tuple[float, ...] | None = None
    factor: float | None = bounded(above=0.0, high=1.0)
    final_fraction: float | None = bounded(low=0.0, high=1.0)
    warmup_steps: int | None = bounded(low=0)


@dataclass(frozen=True)
class EngineConfig:
    """What executes the schedule: the emulator in one process, or the runtime on `ranks` processes.

    Of the rest, all but `graphs` and `history` is the runtime's. `flush` orders a synchronous method's minibatch;
    `timeout` is in seconds, after which a rank that hangs is given up; `max_restarts`: how often torchrun may start all
    ranks again. None of it changes what is learnt.
    """

    name: str = choice("emulator", "emulator", "runtime")
    ranks: int | None = bounded(low=1)
    flush: str | None = choice(None, "gpipe", "1f1b")
    timeout: float | None = bounded(above=0.0)
    max_restarts: int | None = bounded(low=0)
    graphs: str | None = choice(None, "auto", "on", "off")
    """Whether the emulator captures microbatches in CUDA graphs; auto (None): on a GPU, where that can be done."""
    history: str | None = choice(None, "device", "host")
    """Where the emulator's old versions lie; None is the device."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run is mirrored; never part of its identity."""

    name: str = choice("mlflow", "mlflow", "tensorboard", "none")
    uri: str | None = None
    experiment: str = "pipemare"


@dataclass(frozen=True)
class EvaluationConfig:
    """How often, and (translation) how sentences are searched and how many checkpoints are averaged."""

    every_epochs: int = bounded(1, low=1)
    beam: int | None = bounded(low=1)
    length_penalty: float | None = None
    average: int | None = bounded(low=1)
    sentences: int | None = bounded(low=1)
    """Sentences of valid whose BLEU is taken in every evaluation, evenly spread; None: all of them."""
    blocks: int | None = bounded(low=1)
    """Blocks of valid whose bits per byte are taken in every evaluation, evenly spread; None: all of them."""


@dataclass(frozen=True)
class CheckpointConfig:
    """`every_steps` None: as often as costs less than 2 % of the time. `keep`: older ones beside the last. `best`:
    whether the model of the best evaluation is kept, too."""

    every_steps: int | None = bounded(low=1)
    keep: int = bounded(1, low=1)
    best: bool = False


@dataclass(frozen=True)
class DiagnosticsConfig:
    """At which steps the staleness of every stage's weights is looked at and logged: every so many, and the last one
    before each evaluation. Off by default; it only reads, so it is no part of a run's identity. Emulator only."""

    every_steps: int | None = bounded(low=1)
    at_evaluations: bool = False


@dataclass(frozen=True)
class Config:
    """The whole configuration of one run."""

    seed: int = bounded(0, low=0)
    scale: str = choice("demo", *SCALES)
    device: str = choice("auto", "auto", "cpu", "cuda")
    precision: str | None = choice(None, "fp32", "tf32", "bf16")
    """What products are computed in; None is fp32. tf32 is a GPU's; bf16 keeps weights and sums in fp32."""
    threads: int | None = bounded(low=1)
    memory_format: str = choice("contiguous", "contiguous", "channels_last")
    epochs: int = bounded(1, low=1)
    max_steps: int | None = bounded(low=1)
    """Stop after so many steps, where there are more; the schedule's length stays that of `epochs`."""
    steps_per_epoch: int | None = bounded(low=1)
    """Filled when the task is known: it belongs to the identity, since it tells subsets of the data apart."""
    log_every: int = bounded(10, low=1)
    runs: str | None = None
    progress: str = choice("auto", "auto", "bar", "plain", "none")
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    pipeline: PipelineConfig = PipelineConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()
    tracking: TrackingConfig = TrackingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
