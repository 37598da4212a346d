"""What every sampler must do, as a suite of tests.

Subclass it in a test module, name the subclass `Test...`, and write `make` and `names`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

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
    #: How many values a trial is told with.
    num_objectives: int = 1

    def make(self) -> Sampler:
        """A fresh sampler, with the same arguments every time; no less than two trials."""
        raise NotImplementedError("write make(self)")

    def test_every_trial_has_every_parameter_in_order(self) -> None:
        for params in self._proposals():
            assert tuple(params) == self.names

    def test_values_are_what_json_gives_back(self) -> None:
        for params in self._proposals():
            again = json.loads(json.dumps(params, allow_nan=False))
            # Types and all: a NumPy scalar shows in its repr.
            assert repr(again) == repr(params)

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

    def test_asking_again_gives_the_same(self) -> None:
        sampler = self.make()
        assert [sampler.ask(0), sampler.ask(1)] == [sampler.ask(0), sampler.ask(1)]

    def test_a_replay_that_is_cut_anywhere_goes_on_the_same(self) -> None:
        events = self._events()
        whole = self._play(self.make(), events)
        for cut in range(1, len(events)):
            broken, fresh = self.make(), self.make()
            before = self._play(broken, events[:cut])
            assert before == whole[: len(before)]
            assert self._play(fresh, events) == whole

    def test_a_trial_that_waits_may_be_told_again(self) -> None:
        sampler = self.make()
        params = sampler.ask(0)
        assert params is not None
        for status in (TrialStatus.PAUSED, TrialStatus.PAUSED, TrialStatus.FINISHED):
            sampler.tell(0, params, self._outcome(0, status))
        assert sampler.ask(1) is not None

    def test_params_that_it_did_not_propose_may_be_told(self) -> None:
        sampler, other = self.make(), self.make()
        for number in range(2):
            params = other.ask(number)
            assert params is not None
            sampler.tell(-1 - number, params, self._outcome(number, TrialStatus.FINISHED))
        assert sampler.ask(0) is not None
        sampler.tell(0, other.ask(1) or {}, self._outcome(0, TrialStatus.FINISHED))
        assert sampler.ask(1) is not None

    def test_params_outside_the_space_may_be_told(self) -> None:
        sampler = self.make()
        sampler.ask(0)
        for number in (-1, 0):
            sampler.tell(number, {"elsewhere": 1}, self._outcome(0, TrialStatus.FINISHED))
        assert sampler.ask(1) is not None

    def _proposals(self, sampler: Sampler | None = None) -> list[Params]:
        sampler = sampler or self.make()
        proposals: list[Params] = []
        while len(proposals) < _ENOUGH:
            number = len(proposals)
            params = sampler.ask(number)
            if params is None:
                break
            proposals.append(params)
            sampler.tell(number, params, self._outcome(number, TrialStatus.FINISHED))
        return proposals

    def _outcome(self, number: int, status: TrialStatus) -> Outcome:
        if status.is_failure:
            return Outcome(None, status)
        return Outcome(tuple((number * 7 + k) % 5 / 5 for k in range(self.num_objectives)), status)

    def _events(self) -> list[tuple[int, TrialStatus | None]]:
        """Asks (None) and tells by number: three trials at a time, some of which wait or fail."""
        events: list[tuple[int, TrialStatus | None]] = []
        for number in range(len(self._proposals())):
            events.append((number, None))
            last = number - 2
            if last % 4 == 1:
                events.append((last, TrialStatus.DIVERGED))
            elif last >= 0:
                events.append((last, TrialStatus.PAUSED if last % 4 == 2 else TrialStatus.STOPPED))
            if last % 4 == 0 and last >= 4:
                events.append((last - 2, TrialStatus.FINISHED))
        return events

    def _play(
        self, sampler: Sampler, events: Sequence[tuple[int, TrialStatus | None]]
    ) -> list[Params | None]:
        asked: dict[int, Params | None] = {}
        for number, status in events:
            if status is None:
                asked[number] = sampler.ask(number)
            else:
                sampler.tell(number, asked[number] or {}, self._outcome(number, status))
        return list(asked.values())
