"""What of a model_object survives hops: everything, bit for bit, that has a state."""

from __future__ import annotations

import copy
import json
import logging
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.errors import UsageError
from cerebro.train.visit import State
from tests.unit.train.bare import make_call, tensors_of
from tests.unit.train.spec_loop import Hops, LineSpec, run_bare

VISITS = 6


class Average:
    """Exponential averages of a module's parameters, kept outside of any module."""

    def __init__(self, module):
        self.module = module
        self.shadow = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.updates = 0

    def update(self):
        self.updates += 1
        with torch.no_grad():
            for name, param in self.module.named_parameters():
                self.shadow[name].mul_(0.9).add_(param, alpha=0.1)

    def state_dict(self):
        return {"shadow": self.shadow, "updates": self.updates, "how": lambda: None}

    def load_state_dict(self, state):
        self.shadow, self.updates = state["shadow"], state["updates"]


class Rich(LineSpec):
    """Two modules, and all kinds of things that change in training."""

    def create_model_components(self, hyperparams):
        encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        head = nn.Linear(8, 1)
        scale = nn.Parameter(torch.ones(1))
        bias = torch.zeros(1, requires_grad=True)
        groups = [
            {"params": [*encoder.parameters(), scale, bias]},
            {"params": head.parameters(), "lr": 0.01},
        ]
        optimizer = torch.optim.AdamW(groups, lr=hyperparams["lr"])
        return {
            "encoder": encoder,
            "head": head,
            "scale": scale,
            "bias": bias,
            "ema": copy.deepcopy(head),
            "average": Average(encoder),
            "optimizer": optimizer,
            "warmup": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 20)),
            "scaler": torch.amp.GradScaler("cpu", growth_interval=2, init_scale=4.0),
            "steps": 0,
            "seen": torch.zeros(3, dtype=torch.int64),
            "sums": np.zeros(2),
            "log": {"losses": [], "last": (0, float("inf"))},
            "fixed": {"name": "rich"},
        }

    def train(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        parts = model_object
        out = parts["head"](torch.tanh(parts["encoder"](x))) * parts["scale"] + parts["bias"]
        loss = ((out - y) ** 2).mean()
        parts["optimizer"].zero_grad()
        parts["scaler"].scale(loss).backward()
        parts["scaler"].step(parts["optimizer"])
        parts["scaler"].update()
        parts["warmup"].step()
        parts["average"].update()
        with torch.no_grad():
            for old, new in zip(parts["ema"].parameters(), parts["head"].parameters(), strict=True):
                old.lerp_(new, 0.1)
        parts["steps"] += 1
        parts["seen"][len(x) % 3] += 1
        parts["sums"] += [1.0, loss.item()]
        parts["log"]["losses"].append(loss.item())
        parts["log"]["last"] = (parts["steps"], loss.item())
        parts["extra"] = parts.get("extra", torch.zeros(2)) + x.mean()
        return {"loss": loss}


def facts(model_object):
    """All that the state of a `Rich` trial is made of, as plain values and tensors."""
    parts = model_object
    found = {
        **{
            f"{n}.{k}": v
            for n in ("encoder", "head", "ema")
            for k, v in parts[n].state_dict().items()
        },
        **{f"average.{k}": v for k, v in parts["average"].shadow.items()},
        **{name: parts[name].detach() for name in ("scale", "bias", "seen", "extra")},
        "sums": torch.from_numpy(parts["sums"]),
    }
    plain = {name: parts[name] for name in ("steps", "log", "fixed")}
    return found, {**plain, "updates": parts["average"].updates}


def test_everything_is_as_in_one_loop_after_every_hop(data):
    hops = Hops(Rich(), data).run(VISITS)
    bare = run_bare(Rich(), data, VISITS)
    (ours, values), (theirs, expected) = facts(hops.model_object), facts(bare)
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in theirs.items() if not torch.equal(ours[name], tensor)] == []
    assert values == expected
    assert values["steps"] == VISITS * 3
    assert type(values["log"]["last"]) is tuple


def test_the_optimizer_its_groups_and_schedules_are_as_in_one_loop(data):
    hops = Hops(Rich(), data).run(VISITS)
    bare = run_bare(Rich(), data, VISITS)
    saved = tensors_of(hops.states[-1])
    names = {id(bare[n]): n for n in ("scale",)}
    for part in ("encoder", "head"):
        names |= {id(p): f"{part}.{n}" for n, p in bare[part].named_parameters()}
    for param, slots in bare["optimizer"].state.items():
        if id(param) in names:
            for key, value in slots.items():
                assert torch.equal(saved[f"optimizer.{names[id(param)]}.{key}"], value), key
    groups = hops.states[-1].meta["groups"]
    assert [group["lr"] for group in groups] == [g["lr"] for g in bare["optimizer"].param_groups]
    states = hops.states[-1].meta["objects"]["states"]
    assert states["warmup"]["last_epoch"] == bare["warmup"].last_epoch == VISITS * 3
    assert states["scaler"]["scale"] == bare["scaler"].state_dict()["scale"]
    assert states["scaler"]["_growth_tracker"] == bare["scaler"].state_dict()["_growth_tracker"]


def test_a_state_that_is_saved_and_loaded_goes_on_the_same(data):
    direct = Hops(Rich(), data).run(4)
    other = Hops(Rich(), data)
    for _ in range(4):
        other.run(1)
        last = other.states[-1]
        reloaded = State(memoryview(bytearray(last.buffer)), json.loads(json.dumps(last.meta)))
        other.states[-1] = reloaded
    assert bytes(direct.states[-1].buffer) == bytes(other.states[-1].buffer)
    assert direct.states[-1].meta == other.states[-1].meta


def test_values_that_stay_as_they_are_made_are_not_saved(data):
    meta = Hops(Rich(), data).run(1).states[-1].meta
    assert set(meta["objects"]["values"]) == {"steps", "seen", "sums", "log", "extra"}


class Swapping(LineSpec):
    """Returns another dict with other objects of the same structure, at every step."""

    def train(self, model_object, minibatch, hyperparams, device):
        loss = self.step(model_object, minibatch)
        net = copy.deepcopy(model_object["net"])
        optimizer = torch.optim.SGD(net.parameters(), lr=hyperparams["lr"], momentum=0.9)
        optimizer.load_state_dict(model_object["optimizer"].state_dict())
        return {"net": net, "optimizer": optimizer}, {"loss": loss}


def test_a_returned_model_object_takes_the_place_of_the_old(data):
    swapped = tensors_of(Hops(Swapping(), data).run(4).states[-1])
    kept = tensors_of(Hops(LineSpec(), data).run(4).states[-1])
    assert swapped.keys() == kept.keys()
    assert all(torch.equal(swapped[name], kept[name]) for name in kept)


def test_both_forms_of_return_are_the_same(data):
    class WithPair(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            return model_object, super().train(model_object, minibatch, hyperparams, device)

    one, other = (Hops(spec, data).run(3) for spec in (LineSpec(), WithPair()))
    assert bytes(one.states[-1].buffer) == bytes(other.states[-1].buffer)
    assert [r.members for r in one.reports] == [r.members for r in other.reports]


def test_modules_of_another_structure_are_refused(data):
    class Growing(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            loss = self.step(model_object, minibatch)
            model_object["more"] = nn.Linear(1, 1)
            return {"loss": loss}

    with pytest.raises(UsageError, match=r"Growing\.train must leave modules .* same structure"):
        Hops(Growing(), data).run(1)


def test_an_optimizer_of_modules_that_are_gone_is_refused(data):
    class Forgetting(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            loss = self.step(model_object, minibatch)
            model_object["net"] = copy.deepcopy(model_object["net"])
            return {"loss": loss}

    with pytest.raises(UsageError, match="the optimizer trains others than those of the modules"):
        Hops(Forgetting(), data).run(1)


def test_what_cannot_travel_begins_anew_and_new_things_are_told_of(data, caplog):
    class Queues(LineSpec):
        seen = 0

        def create_model_components(self, hyperparams):
            return {**super().create_model_components(hyperparams), "queue": deque()}

        def train(self, model_object, minibatch, hyperparams, device):
            if not model_object["queue"]:
                type(self).seen += 1
            model_object["queue"].append(1)
            model_object["new"] = deque()
            return super().train(model_object, minibatch, hyperparams, device)

    with caplog.at_level(logging.WARNING, "cerebro.train"):
        Hops(Queues(), data).run(3)
    assert Queues.seen == 3
    (told,) = [record.getMessage() for record in caplog.records]
    assert "train() put 'new' into the model_object, a deque, which does not travel" in told


def test_an_entry_that_train_removes_stays_removed(data):
    class Once(LineSpec):
        def create_model_components(self, hyperparams):
            return {**super().create_model_components(hyperparams), "first": True}

        def train(self, model_object, minibatch, hyperparams, device):
            first = float(model_object.pop("first", False))
            return {**super().train(model_object, minibatch, hyperparams, device), "first": first}

    hops = Hops(Once(), data).run(2)
    assert [report.members[0].sums["first"][0] > 0 for report in hops.reports] == [True, False]


def test_a_state_dict_that_cannot_be_written_down_is_refused(data):
    class Odd:
        def state_dict(self):
            return {"queue": deque()}

        def load_state_dict(self, state):
            raise AssertionError("never saved")

    class Holder(LineSpec):
        def create_model_components(self, hyperparams):
            return {**super().create_model_components(hyperparams), "odd": Odd()}

    with pytest.raises(UsageError, match=r"state_dict\(\) of 'odd' .* but has a deque"):
        Hops(Holder(), data).run(1)


def test_a_copy_goes_on_with_hyperparameters_of_its_own(data):
    class Decaying(LineSpec):
        def create_model_components(self, hyperparams):
            made = super().create_model_components(hyperparams)
            made["decay"] = torch.optim.lr_scheduler.ExponentialLR(made["optimizer"], 0.5)
            made["count"] = 0
            return made

        def train(self, model_object, minibatch, hyperparams, device):
            lr = model_object["optimizer"].param_groups[0]["lr"]
            loss = self.step(model_object, minibatch)
            model_object["count"] += 1
            if model_object["count"] % 3 == 0:
                model_object["decay"].step()
            return {"loss": loss, "lr": lr}

    hops = Hops(Decaying(), data).run(2)
    assert hops.reports[-1].members[0].sums["lr"][0] / 22 == pytest.approx(0.025)
    old, hops.params = hops.params, {**hops.params, "lr": 0.2}
    hops.run(1, origin=old)
    assert hops.reports[-1].members[0].sums["lr"][0] / 22 == pytest.approx(0.05)
    hops.run(1)
    assert hops.reports[-1].members[0].sums["lr"][0] / 22 == pytest.approx(0.025)
    assert hops.model_object["count"] == 12


def test_an_evaluation_sees_the_values_of_the_state(data):
    class Counting(LineSpec):
        def create_model_components(self, hyperparams):
            return {**super().create_model_components(hyperparams), "steps": 0}

        def train(self, model_object, minibatch, hyperparams, device):
            model_object["steps"] += 1
            return super().train(model_object, minibatch, hyperparams, device)

        def val_test(self, model_object, minibatch, hyperparams, device):
            return {"steps": model_object["steps"]}

    hops = Hops(Counting(), data).run(2)
    total, rows = hops.evaluate().members[0].sums["steps"]
    assert total / rows == 6


def test_every_epoch_has_an_order_of_its_own(data):
    class Watching(LineSpec):
        def __init__(self):
            self.ids = []

        def train(self, model_object, minibatch, hyperparams, device):
            self.ids.append(minibatch[2].tolist())
            return super().train(model_object, minibatch, hyperparams, device)

    spec = Watching()
    hops = Hops(spec, data)
    shard = data.open_shard("train", 0)
    for epoch in range(3):
        call = make_call(0, params=hops.params, epoch=epoch, shard=0)
        hops.framework.train(call, shard, None, lambda size: memoryview(bytearray(size)))
    orders = [[row for ids in spec.ids[3 * n : 3 * n + 3] for row in ids] for n in range(3)]
    assert all(sorted(order) == list(range(22)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


class Quasi(LineSpec):
    """Its optimizer keeps lists of tensors."""

    def create_model_components(self, hyperparams):
        net = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, history_size=4)
        return {"net": net, "optimizer": optimizer}

    def step(self, model_object, minibatch):
        x, y, _ = minibatch

        def closure():
            model_object["optimizer"].zero_grad()
            loss = ((model_object["net"](x) - y) ** 2).mean()
            loss.backward()
            return loss

        return model_object["optimizer"].step(closure)


def test_tensors_in_lists_of_the_optimizer_are_as_in_one_loop(data):
    hops = Hops(Quasi(), data).run(VISITS)
    expected = run_bare(Quasi(), data, VISITS)
    for one, other in zip(
        hops.model_object["net"].parameters(), expected["net"].parameters(), strict=True
    ):
        assert torch.equal(one, other)
    kept = tensors_of(hops.states[-1])
    assert sum(name.startswith("optimizer.~inner.") for name in kept) > 4
