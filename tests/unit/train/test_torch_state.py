"""What of a trial travels, and how it lies in one buffer."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch import nn, optim

from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.torch.buffer import DTYPES, PrivateCopy, copy_state, view_of
from cerebro.train.torch.state import Components
from cerebro.train.visit import State
from tests.unit.train.bare import (
    Chain,
    LineTask,
    allocate,
    assert_equals_bare_loop,
    run_visits,
    tensors_of,
)


def with_model(make, optimizer=None):
    """The line task with another model."""

    class T(LineTask):
        def model(self, params):
            return make()

        def optimizer(self, model, params):
            return optimizer(model) if optimizer else super().optimizer(model, params)

    return T()


class Flexible(nn.Module):
    """A line, and whatever a test adds to it."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x):
        return self.line(x)


def test_batch_norm_statistics_travel(data):
    task = with_model(lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)))
    assert_equals_bare_loop(task, data)
    assert run_visits(task, data, 4).tensors["model.1.num_batches_tracked"] == 12


def test_tied_weights_stay_tied_and_are_stored_once(data):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 4)
            self.up.weight = self.down.weight

        def forward(self, x):
            return self.up(torch.tanh(self.down(x))).sum(1, keepdim=True)

    task = with_model(Tied)
    assert_equals_bare_loop(task, data)
    chain = run_visits(task, data, 2)
    assert "model.up.weight" not in chain.tensors
    model = chain.model
    assert model.up.weight is model.down.weight


class Counting(Flexible):
    """Counts its calls in a buffer that a state_dict would leave out."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.line(x)


def test_buffers_that_are_not_persistent_travel(data):
    assert run_visits(with_model(Counting), data, 4).tensors["model.calls"] == 12


def test_buffers_that_a_model_replaces_travel(data):
    class Replacing(Counting):
        def forward(self, x):
            self.calls = self.calls + 1
            return self.line(x)

    assert run_visits(with_model(Replacing), data, 4).tensors["model.calls"] == 12


def test_buffers_that_change_places_travel(data):
    class Swapping(Flexible):
        def __init__(self):
            super().__init__()
            self.register_buffer("old", torch.zeros(16))
            self.register_buffer("new", torch.ones(16))

        def forward(self, x):
            self.old, self.new = self.new, self.old
            return self.line(x)

    assert_equals_bare_loop(with_model(Swapping), data)


def test_buffers_without_a_tensor_stay_without_one(data):
    class Empty(Flexible):
        def __init__(self):
            super().__init__()
            self.register_buffer("later", None)

    assert_equals_bare_loop(with_model(Empty), data)


def test_expanded_buffers_travel(data):
    class Expanded(Flexible):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.arange(4.0).expand(3, 4))

    assert_equals_bare_loop(with_model(Expanded), data)


def test_plain_tensor_attributes_travel(data):
    class Smoothed(Flexible):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(4)

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.line(x + self.mean)

    assert_equals_bare_loop_of_parameters(with_model(Smoothed), data)


def test_plain_tensor_attributes_go_to_the_device_where_they_were():
    def make(device):
        model = nn.Linear(1, 1)
        model.mean = torch.zeros(4, device=device)
        return Components(model, optim.SGD(model.parameters(), lr=0.1), None, None)

    state = State(make("cpu").save(allocate, None), make("cpu").meta())
    parts = make("meta")
    parts.bind_model(*PrivateCopy().take(state), state.meta)
    assert parts.model.mean.device.type == "meta"


def assert_equals_bare_loop_of_parameters(task, data):
    from tests.unit.train.bare import Bare

    ours, bare = run_visits(task, data, 6).tensors, Bare(task, data).run(6)
    for name, param in bare.model.named_parameters():
        assert torch.equal(ours[f"model.{name}"], param)


def test_extra_state_of_modules_travels(data):
    class Extra(Flexible):
        def __init__(self):
            super().__init__()
            self.count = 0

        def forward(self, x):
            self.count += 1
            return self.line(x) * (1 + self.count / 100)

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    assert_equals_bare_loop(with_model(Extra), data)


def test_channels_last_weights_travel(data):
    class Image(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.line = nn.Linear(8, 1)

        def forward(self, x):
            image = x.repeat(1, 27).reshape(-1, 3, 6, 6)
            image = image.contiguous(memory_format=torch.channels_last)
            return self.line(self.conv(image).mean((2, 3)))

    task = with_model(
        lambda: Image().to(memory_format=torch.channels_last),
        lambda model: optim.Adam(model.parameters(), lr=0.01),
    )
    assert_equals_bare_loop(task, data)


def test_a_loaded_model_keeps_its_memory_format(data):
    task = with_model(
        lambda: nn.Sequential(
            nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 8, 3, padding=1), nn.Flatten(), nn.Linear(8, 1)
        ).to(memory_format=torch.channels_last)
    )
    weight = run_visits(task, data, 2).model[1].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_recurrent_layers_travel(data):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.line = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 1)

        def forward(self, x):
            return self.line(self.lstm(x[:, :, None])[0][:, -1])

    assert_equals_bare_loop(with_model(Recurrent), data)


def test_parametrised_layers_travel(data):
    make = nn.utils.parametrizations.weight_norm
    task = with_model(lambda: nn.Sequential(make(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)))
    assert_equals_bare_loop(task, data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_precision_travel(data, dtype):
    class Precise(Flexible):
        def forward(self, x):
            return self.line(x.to(dtype)).float()

    assert_equals_bare_loop(with_model(lambda: Precise().to(dtype)), data)


def test_tensors_without_elements_and_without_dimensions_travel(data):
    class Odd(Flexible):
        def __init__(self):
            super().__init__()
            self.register_buffer("none", torch.zeros(0, 3))
            self.register_buffer("one", torch.tensor(7, dtype=torch.int16))
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.line(x) * self.scale

    assert_equals_bare_loop(with_model(Odd), data)


def test_weights_are_64_byte_aligned_in_the_buffer(data):
    tensors = run_visits(LineTask(), data, 2).tensors
    whole = [t for t in tensors.values() if t.nbytes % 64 == 0]
    assert whole
    assert all(tensor.data_ptr() % 64 == 0 for tensor in whole)


def test_the_buffer_is_a_safetensors_file(data):
    chain = run_visits(LineTask(), data, 2)
    found = load_safetensors(bytes(chain.states[-1].buffer))
    assert found.keys() == chain.tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in chain.tensors.items())


def test_the_same_layout_is_not_allocated_twice(data):
    sizes = []

    def counted(size):
        sizes.append(size)
        return allocate(size)

    chain = Chain(LineTask(), data).run(1)
    from tests.unit.train.bare import make_call

    call = make_call(1)
    chain.framework.train(call, data.open_shard("train", call.shard), chain.states[0], counted)
    assert sizes == [len(chain.states[0].buffer)]


def test_training_trains_in_its_own_copy(data):
    chain = Chain(LineTask(), data).run(1)
    before = bytes(chain.states[0].buffer)
    chain.run(1)
    assert bytes(chain.states[0].buffer) == before
    assert bytes(chain.states[1].buffer) != before


def test_a_copied_state_is_equal_and_apart():
    layout = Layout.plan([("a", "F32", (3,))])
    buffer = allocate(layout.total_bytes)
    buffer[: layout.data_start] = layout.header_bytes()
    state = State(buffer)
    tensors_of(state)["a"].copy_(torch.tensor([1.0, 2.0, 3.0]))
    copied, own = copy_state(state, allocate)
    assert bytes(own) == bytes(buffer)
    view_of(copied, own, copied["a"]).zero_()
    assert tensors_of(state)["a"].tolist() == [1.0, 2.0, 3.0]


def test_a_private_copy_has_all_but_the_optimizers_tensors_where_they_lie(data):
    chain = run_visits(LineTask(), data, 2)
    layout, own = PrivateCopy().take(chain.states[-1])
    for entry in layout.entries:
        found, expected = view_of(layout, own, entry), chain.tensors[entry.name]
        assert torch.equal(found, expected) != entry.name.startswith("optimizer.")


@pytest.mark.parametrize("code", DTYPES)
def test_every_dtype_has_the_size_the_layout_thinks(code):
    layout = Layout.plan([("a", code, (3,))])
    assert layout["a"].nbytes == 3 * DTYPES[code].itemsize


def test_a_dtype_that_cannot_be_stored_is_named():
    model = nn.Linear(1, 1)
    model.register_buffer("odd", torch.zeros(1, dtype=torch.complex128))
    parts = Components(model, optim.SGD(model.parameters(), lr=0.1), None, None)
    with pytest.raises(UsageError, match=r"model.odd is torch.complex128"):
        parts.save(allocate, None)


def test_lazy_modules_are_refused(data):
    task = with_model(lambda: nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 1)))
    with pytest.raises(UsageError, match=r"[Ll]azy"):
        run_visits(task, data, 2)
