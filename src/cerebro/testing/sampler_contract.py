"""What every sampler must do, as a suite of tests.

Subclass it in a test module, name the subclass `Test...`, and write `make` and `names`.
"""

from __future__ import annotations

import json

from cerebro.search.decision import Outcome
from cerebro.search.sampler import Sampler
from cerebro.types import Params, TrialStatus

_ENOUGH = 1000


class SamplerContract:
    """Tests that hold for any sampler of finitely many trials (fewer than 1000).

    >>> from cerebro.search import GridSampler, parse_space
    >>> class TestMySampler(SamplerContract):
    ...     names = ("lr",)
    ...     def make(self):
    ...         return GridSampler(parse_space({"lr": [0.1, 0.01]}))
    >>> TestMySampler().test_the_same_history_gives_the_same_proposals()
    """

    #: The parameters of the space, in declaration order.
    names: tuple[str, ...] = ()

    def make(self) -> Sampler:
        """A fresh sampler, with the same arguments every time; no less than two trials."""
        raise NotImplementedError("write make(self)")

    def test_every_trial_has_every_parameter_in_order(self) -> None:
        for params in self._proposals():
            assert tuple(params) == self.names

    def test_values_are_what_json_gives_back(self) -> None:
        for params in self._proposals():
            again = json.loads(json.dumps(params, allow_nan=False))
            assert again == params
            assert [type(value) for value in again.values()] == [
                type(value) for value in params.values()
            ]

    def test_it_ends(self) -> None:
        assert 2 <= len(self._proposals()) < _ENOUGH

    def test_it_stays_ended(self) -> None:
        sampler = self.make()
        count = len(self._proposals(sampler))
        assert sampler.ask(count) is None
        assert sampler.ask(count + 1) is None

    def test_the_same_history_gives_the_same_proposals(self) -> None:
        assert self._proposals() == self._proposals()

    def test_a_trial_without_a_value_may_be_told(self) -> None:
        sampler = self.make()
        params = sampler.ask(0)
        assert params is not None
        sampler.tell(0, params, Outcome(None, TrialStatus.DIVERGED))
        assert sampler.ask(1) is not None

    def test_changing_a_proposal_does_not_change_the_next(self) -> None:
        sampler = self.make()
        spoilt = sampler.ask(0)
        assert isinstance(spoilt, dict)
        for value in spoilt.values():
            if isinstance(value, list):
                value.append("changed")
        spoilt.clear()
        assert sampler.ask(1) == self.make().ask(1)

    def _proposals(self, sampler: Sampler | None = None) -> list[Params]:
        sampler = sampler or self.make()
        proposals: list[Params] = []
        while len(proposals) < _ENOUGH:
            number = len(proposals)
            params = sampler.ask(number)
            if params is None:
                break
            proposals.append(params)
            sampler.tell(number, params, Outcome((1.0 / (number + 1),), TrialStatus.FINISHED))
        return proposals
