"""All that is needed of Ray, which is loaded at first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from cerebro.backend.ray.connection import (
    NAMED,
    Connection,
    Wish,
    check_address,
    connect,
    far_connection,
    is_one_machine,
    load_ray,
)
from cerebro.backend.ray.environment import with_packages
from cerebro.backend.ray.orders import Handle
from cerebro.errors import UsageError

#: Threads of an actor beside the one that runs orders: one waits for the end of its process, some
#: write checkpoints, one is for what must not wait.
_GROUPS = {"watch": 1, "save": 2, "light": 1}
#: Files, or pieces of them, that are under way at once from the driver's machine to all nodes.
_RELAYED = 4
_F = TypeVar("_F", bound=Callable[..., Any])
#: A group of places, and which of them is meant.
Room: TypeAlias = tuple[Handle | None, int]


def fetch(ref: Handle) -> Any:
    """What a reference stands for; for code that runs inside of an actor."""
    import ray

    return ray.get(ref)


def this_node() -> str:
    """The node of Ray that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def this_address() -> str:
    """The address at which other nodes reach the one that this process is on."""
    import ray

    return str(ray.util.get_node_ip_address())


class Cluster:
    """A connection to Ray, and the actors made over it.

    Args:
        actor: The class of the actors.
        workers: So many shall fit where Ray has to be started first, with so many threads each.
    """

    def __init__(self, wish: Wish, actor: type, workers: int = 1, threads: int = 1) -> None:
        self.ray = load_ray()
        self._wish = wish
        #: Ours, if nobody has connected before.
        self._connection: Connection | None = None
        #: How Ray sets up the workers' processes, as far as the connection does not say it.
        self._environment: Mapping[str, Any] = {}
        if self.ray.is_initialized():
            check_address(self.ray, wish.address)
            packages = None if is_one_machine(self.ray) else wish.requirements
            self._environment = with_packages(wish.runtime_env, packages)
        else:
            self._connection = connect(self.ray, wish, workers, threads)
        self._made = self.ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=_GROUPS)
        self._class = self._made(actor)
        #: Resource -> how much of it each worker gets.
        self.needs: Mapping[str, float] = wish.resources or self.usual_needs()

    @property
    def is_far(self) -> bool:
        """Whether the driver is on no node of the cluster."""
        return far_connection() is not None

    @property
    def places(self) -> int:
        """Workers that the nodes have room for while nothing else runs there."""
        group = self._wish.placement_group
        if group is not None:
            rooms: Sequence[Mapping[str, float]] = group.bundle_specs
        else:
            rooms = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(_places_in(room, self.needs) for room in rooms)

    @property
    def places_per_node(self) -> int:
        """Workers that each node has room for; they must be equals."""
        if self._wish.placement_group is not None:
            raise UsageError(
                "workers_per_trial='host' needs to know the machines, but a placement group was "
                "given, which has bundles. Give workers_per_trial as a number."
            )
        rooms = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        found = {_places_in(room, self.needs) for room in rooms} - {0}
        if len(found) > 1:
            raise UsageError(
                "with workers_per_trial='host' all machines must have room for as many workers, "
                f"but got machines with {' and '.join(map(str, sorted(found)))}. Give "
                "workers_per_trial as a number."
            )
        return found.pop() if found else 1

    @property
    def hosts(self) -> int:
        """Nodes that have room for a worker."""
        rooms = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(_places_in(room, self.needs) > 0 for room in rooms)

    def usual_needs(self, threads: int = 1, device: str = "auto") -> dict[str, float]:
        """What a worker gets if nobody says it: its cores, and a GPU where there are any."""
        needs = {"CPU": float(threads)}
        if device != "cpu" and self.ray.cluster_resources().get("GPU", 0) >= 1:
            needs["GPU"] = 1.0
        return needs

    @property
    def address(self) -> str:
        """Where other machines find it."""
        return str(self.ray.get_runtime_context().gcs_address)

    @property
    def room(self) -> str:
        """What each worker needs and what there is, for people."""
        have = self.ray.cluster_resources()
        free = self.ray.available_resources()
        return ", ".join(
            f"{name}: {need:g} for each worker, {free.get(name, 0):g} of {have.get(name, 0):g} free"
            for name, need in self.needs.items()
        )

    def put(self, value: object) -> Handle:
        return self.ray.put(value)

    def hush(self, ref: Handle) -> None:
        """Nobody will ask for what a failed call was to give; Ray would complain about that."""
        with contextlib.suppress(Exception):
            self.ray.get(ref, timeout=0)

    def make(
        self, index: int, *given: object, actor: type | None = None, room: Room | None = None
    ) -> Handle:
        """An actor for a worker; Ray places it as soon as there is room, or in room of its own."""
        made = self._class if actor is None else self._made(actor)
        return made.options(**self._actor_options(room)).remote(index, *given)

    def reserve(self, size: int, *, is_together: bool) -> Handle | None:
        """Room for so many workers, all at once or not at all; None in a group of the user's."""
        needs = {name: need for name, need in self.needs.items() if need > 0}
        if self._wish.placement_group is not None or not needs:
            return None
        strategy = "STRICT_PACK" if is_together else "PACK"
        return self.ray.util.placement_group([dict(needs) for _ in range(size)], strategy=strategy)

    def give_back(self, group: Handle | None) -> None:
        """Nobody needs this room any more."""
        if group is not None:
            with contextlib.suppress(Exception):
                self.ray.util.remove_placement_group(group)

    def make_near(self, actor: type, *given: object) -> Handle:
        """An actor on the driver's own machine, which takes none of its cores."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.is_far:
            raise UsageError(
                "a driver that is not on a node of its cluster (ray://) needs a store and a "
                "dataset that all nodes see, but some do not. Use a directory that all machines "
                "share, mounted at the same path, or a URL such as s3://."
            )
        near = NodeAffinitySchedulingStrategy(node_id=this_node(), soft=False)
        # It keeps nothing, and writes whole files: it may start anew, and do things twice.
        made = self.ray.remote(
            num_cpus=0,
            max_concurrency=_RELAYED,
            max_restarts=-1,
            max_task_retries=3,
            scheduling_strategy=near,
        )
        return made(actor).remote(*given)

    def kill(self, actor: Handle) -> None:
        """End an actor at once, and what it has started."""
        with contextlib.suppress(Exception):
            self.ray.kill(actor, no_restart=True)

    def wait(self, refs: Sequence[Handle], timeout_s: float) -> None:
        """Until all of them are answered, or have failed, or the time is over."""
        with contextlib.suppress(Exception):
            self.ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)

    def close(self) -> None:
        """Disconnect; what we have started ends."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _actor_options(self, room: Room | None) -> dict[str, Any]:
        given = self.needs
        options: dict[str, Any] = {
            NAMED[name]: amount for name, amount in given.items() if name in NAMED
        }
        custom = {name: amount for name, amount in given.items() if name not in NAMED}
        if custom:
            options["resources"] = custom
        options["scheduling_strategy"] = self._strategy(room)
        if self._environment:
            options["runtime_env"] = dict(self._environment)
        return options

    def _strategy(self, room: Room | None) -> Any:
        group, bundle = room or (None, -1)
        if group is None:
            group, bundle = self._wish.placement_group, -1
        if group is None:
            return "SPREAD"
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle
        )


def call(
    actor: Handle, method: str, *given: object, returns: int = 1, retries: int | None = None
) -> Any:
    """Ask an actor for something: a reference to the answer, or several.

    Args:
        retries: How often Ray asks again if the actor dies; default what it was made with.
    """
    asked = getattr(actor, method).options(num_returns=returns, max_task_retries=retries)
    return asked.remote(*given)


def in_group(name: str) -> Callable[[_F], _F]:
    """The method of an actor runs beside others; as `ray.method` says it, without Ray."""

    def mark(method: _F) -> _F:
        method.__ray_concurrency_group__ = name  # type: ignore[attr-defined]
        return method

    return mark


def _places_in(room: Mapping[str, float], needs: Mapping[str, float]) -> int:
    # A fifth goes into one five times, whatever rounding says.
    counts = [int(room.get(name, 0) / need + 1e-9) for name, need in needs.items() if need > 0]
    return min(counts, default=0)


def check_resources(given: object) -> dict[str, float]:
    """What each worker gets; with one core unless said otherwise. Nothing if nothing is said.

    >>> check_resources({"GPU": 1})
    {'CPU': 1.0, 'GPU': 1.0}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"resources_per_worker must be like {{'CPU': 1, 'GPU': 1}}, but got {given!r:.200}."
        )
    for name, amount in given.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(name, str) or not is_number or not amount >= 0:
            raise UsageError(
                "resources_per_worker must have names and numbers from 0 on, but got "
                f"{name!r}: {amount!r}."
            )
    return {"CPU": 1.0, **{name: float(amount) for name, amount in given.items()}}
