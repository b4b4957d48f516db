"""Errors are part of the interface: the tree, the attributes, and that they survive a process pool."""

from __future__ import annotations

import inspect
import pickle

import pytest

from tallymark import errors, history

SAMPLES = [
    errors.StoreError("no", key="k", retryable=True),
    errors.StoreDenied("no", key="k"),
    errors.StoreUnsuited("no", key="k"),
    errors.JournalCorrupt("no", slot=3),
    errors.CommitUnknown("no", key="k"),
    errors.RankTaken("no", rank=1, host="h", pid=2),
    errors.Superseded("no", attempt=None, live_attempt=2),
    errors.StepAborted("no", step=1, attempt=1, reason="left", ranks=[1], hosts=["h"]),
    errors.BarrierTimeout("no", step=1, attempt=1, reason="timeout"),
    errors.CheckpointDamaged("no", paths=["a"]),
    errors.InvalidInput("no"),
    history.Refused("chain", "no"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_attributes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_every_error_hangs_on_one_tree_that_is_drawn_as_it_is():
    drawn = [line.strip("│├└─ ").split()[0] for line in errors.__doc__.splitlines() if "──" in line]
    classes = [
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.TallymarkError) and name != "TallymarkError"
    ]
    assert sorted(drawn) == sorted(classes)


def test_builtin_families_are_kept():
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.UsageError, RuntimeError)
    assert issubclass(errors.BarrierTimeout, TimeoutError)
    assert issubclass(errors.WaitTimeout, TimeoutError)
