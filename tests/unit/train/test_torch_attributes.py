"""State of a model that would be lost at a hop is noticed."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from tests.unit.train.bare import Chain, LineTask


class Keeping(nn.Module):
    """Does something to itself in every pass."""

    def __init__(self, keep):
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.inner = nn.Identity()
        self.calls, self.mode, self.mask, self.limit = 0, "first", None, float("nan")
        self.mean = torch.zeros(4)
        self.keep = keep

    def forward(self, x):
        self.keep(self, x)
        return self.line(x)


def warnings_of(data, caplog, keep, visits=3, model=Keeping):
    class T(LineTask):
        def model(self, params):
            return model(keep)

    with caplog.at_level(logging.WARNING, "cerebro.train"):
        Chain(T(), data).run(visits)
    return [record.getMessage() for record in caplog.records]


def count(model, x):
    model.calls += 1


def name(model, x):
    model.mode = "second"


def cache(model, x):
    model.mask = torch.ones(4)


def begin(model, x):
    model.new = 3


def forget(model, x):
    model.mean = None


def reach(model, x):
    model.inner.scale = 2.0


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (count, "attribute calls changed from 0 to 3 in training"),
        (name, "attribute mode changed from 'first' to 'second'"),
        (cache, "attribute mask changed from None to a tensor"),
        (begin, "attribute new changed from something else or nothing to 3"),
        (forget, "attribute mean changed from a tensor to None"),
        (reach, "attribute inner.scale changed from something else or nothing to 2.0"),
    ],
)
def test_an_attribute_that_does_not_travel_is_named_once(data, caplog, keep, told):
    (message,) = warnings_of(data, caplog, keep)
    assert told in message
    assert "register_buffer" in message
    assert "get_extra_state" in message


def nothing(model, x):
    pass


def replace_tensor(model, x):
    model.mean = model.mean + x.mean(0)


def change_mode(model, x):
    model.inner.eval()


def collect(model, x):
    model.__dict__.setdefault("seen", []).append(1)


@pytest.mark.parametrize("keep", [nothing, replace_tensor, change_mode, collect])
def test_what_travels_or_is_no_plain_value_is_no_matter(data, caplog, keep):
    assert warnings_of(data, caplog, keep) == []


def test_hooks_are_no_matter(data, caplog):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            model[3].register_full_backward_hook(lambda *_: None)
            model.register_forward_hook(lambda *_: None)

    Chain(T(), data).run(2)
    assert caplog.records == []


def test_modules_with_extra_state_take_care_of_themselves(data, caplog):
    class Extra(Keeping):
        def get_extra_state(self):
            return self.calls

        def set_extra_state(self, state):
            self.calls = state

    assert warnings_of(data, caplog, count, model=Extra) == []


def test_ordinary_layers_are_no_matter(data, caplog):
    class T(LineTask):
        def model(self, params):
            return nn.Sequential(
                nn.Unflatten(1, (1, 4)),
                nn.Conv1d(1, 8, 2),
                nn.BatchNorm1d(8),
                nn.Dropout(0.1),
                nn.Flatten(),
                nn.utils.parametrizations.weight_norm(nn.Linear(24, 8)),
                nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
                nn.LayerNorm(8),
                nn.Unflatten(1, (2, 4)),
                nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
                nn.Flatten(),
                nn.Linear(8, 1),
            )

    Chain(T(), data).run(2)
    assert caplog.records == []


def test_an_attribute_set_in_a_callback_is_named(data, caplog):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            model.epoch = epoch

    Chain(T(), data).run(4)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "attribute epoch changed" in message
