"""What methods declare about themselves, and that asking for it is quick."""

import itertools
import subprocess
import sys

import pytest

from pipemare_exp import methods, settings
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import MethodConfig, method_config
from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, SWITCHES, T1, T2, T3, Method

every_method = pytest.mark.parametrize("name", methods.METHODS)

ASK = """
import sys
from pipemare_exp import methods
from pipemare_exp.experiment.config.schema import method_config
for name, method in methods.METHODS.items():
    method_config(name)
    label = method.label_of(["t1"], method.Options())
    methods.title(label), methods.place(label), methods.costs_of(label), methods.file_of(label)
    [method.refusal(what) for what in ("lr_rescheduling", "recomputation", "runtime")]
    [costs.memory(8, 4) for costs in method.costs.values()]
    method()
# NumPy may be: the configuration asks the data sets for their names, and their files import it.
loaded = {"torch", "hydra", "fairseq", "mlflow"} & set(sys.modules)
assert not loaded, loaded
"""


def test_asking_a_method_imports_no_torch():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@every_method
def test_a_method_says_what_it_is_and_why_it_refuses(name):
    method = methods.find(name)
    assert method.title and method.reference and method.__doc__
    known = {T1, T2, T3, RECOMPUTATION, RUNTIME}
    assert set(method.takes) <= known and set(method.cannot) <= known - set(method.takes)
    assert all(method.refusal(what) for what in known - set(method.takes))
    assert not any(method.refusal(what) for what in method.takes)


@every_method
def test_a_label_finds_its_method_again(name):
    method = methods.find(name)
    can = [SWITCHES[group] for group in SWITCHES if group in method.takes]
    for count in range(len(can) + 1):
        for on in itertools.combinations(can, count):
            assert methods.of_label(method.label_of(on, method.Options())) is method


@every_method
def test_own_options_hide_no_shared_one(name):
    own = settings.names(methods.find(name).Options)
    assert not set(own) & set(settings.names(MethodConfig))
    made = method_config(name)(name=name)
    assert made.kind is methods.find(name)
    assert [getattr(made, option) for option in own] == [getattr(made.kind.Options(), option) for option in own]


def test_labels_in_the_order_of_tables():
    shown = ["gpipe", "pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3", "hogwild", "hogwild+t1", "another"]
    assert sorted(reversed(shown), key=methods.place) == shown
    assert [methods.file_of(label) for label in shown[5:7]] == ["t1_t2", "pipemare"]
    assert [label for label in shown if methods.synchronous(label)] == ["gpipe"]
    assert methods.title("hogwild+t1") == "Hogwild!-style, T1" and methods.title("another") == "another"


def test_what_runs_cost_by_their_label():
    known = methods.costs()
    assert list(known)[:4] == ["gpipe", "pipedream", "pipemare", "pipemare_no_t2"]
    assert set(known) - {"pipemare_no_t2"} <= set(methods.METHODS)
    assert [methods.costs_of(label) for label in ("gpipe", "pipedream", "t1+t2", "t1", "hogwild")] == [
        known["gpipe"], known["pipedream"], known["pipemare"], known["pipemare_no_t2"], None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": 2}, 'unknown option "method.delay".*delay_scale'),
        ({"delay_scale": "much"}, "method.delay_scale=much: it takes a number"),
        ({"decay": 0.5}, r"hogwild with T2 \(discrepancy_correction\): the delays are random"),
    ],
)
def test_a_wrong_option_is_told_with_what_there_is(options, says):
    with pytest.raises(UserError, match=says):
        methods.build("hogwild", **options)


def test_what_a_method_does_not_say_that_it_takes_is_refused():
    class Silent(Method):
        name = "silent"

    with pytest.raises(UserError, match=r"silent with T1 \(lr_rescheduling\): this method does not have it"):
        Silent(lr_rescheduling_steps=3)
