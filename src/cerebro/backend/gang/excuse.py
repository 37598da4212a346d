"""A process that fails before it meets the others: they hear why, and do not wait for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace

from cerebro.backend.gang.muster import mustered
from cerebro.backend.gang.outcome import word_of
from cerebro.backend.gang.rendezvous import Kind, Rendezvous
from cerebro.backend.gang.seek import find_muster
from cerebro.errors import RunInterrupted

#: How long rank 0 is looked for: it may still be on its way.
_LOOK_S = 30.0

logger = logging.getLogger("cerebro.gang")


@contextlib.contextmanager
def excused(rendezvous: Rendezvous | None, run: str | None) -> Iterator[None]:
    """Tell the others of an error in here that keeps this process from meeting them.

    Not where people have started the processes: they read it here, and start this one again.

    Args:
        rendezvous: Of this process; None: it is alone.
        run: The name of the run; None: it has none by which the others could be found.
    """
    if rendezvous is not None:
        # A script's next run is one that they meet for anew.
        rendezvous.met.clear()
    try:
        yield
    except RunInterrupted:
        # A batch system signals all.
        raise
    except Exception as error:
        if rendezvous is not None and run is not None and not rendezvous.met.is_set():
            _excuse(rendezvous, run, error)
        raise


def _excuse(rendezvous: Rendezvous, run: str, error: Exception) -> None:
    if not rendezvous.is_spread or rendezvous.kind is Kind.FLAGS:
        return
    logger.info("telling the other processes: %s", word_of(error))
    rendezvous.met.set()
    brief = replace(rendezvous, patience_s=min(rendezvous.patience_s, _LOOK_S))
    # Whatever keeps them from hearing it, this process ends with its own error.
    with contextlib.suppress(Exception, SystemExit):
        if brief.is_leading:
            with mustered(brief, run) as muster:
                muster.word = word_of(error)
                raise error
        with find_muster(brief, run, lambda: None) as post:
            post.say({"failed": f"rank {brief.first} cannot take part: {word_of(error)}"})
