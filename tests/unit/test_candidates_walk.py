"""The way round the keys of a worker's capabilities."""

from __future__ import annotations

import pytest

from orbit.server.services.candidates import stretches
from orbit.server.services.workers import KeyWalk


@pytest.mark.parametrize(
    ("walk", "last", "expected"),
    [
        (KeyWalk(), {}, []),
        (KeyWalk(), {0: "m", 2: "z"}, [(0, "", "m"), (2, "", "z")]),
        (KeyWalk(0, "c"), {0: "m", 2: "z"}, [(0, "c", "m"), (2, "", "z"), (0, "", "c")]),
        (KeyWalk(2, "c"), {0: "m", 2: "z"}, [(2, "c", "z"), (0, "", "m"), (2, "", "c")]),
        # Its tasks, or those of the later keys, are gone.
        (KeyWalk(1, "c"), {0: "m", 2: "z"}, [(2, "", "z"), (0, "", "m")]),
        (KeyWalk(2, "zz"), {0: "m", 2: "z"}, [(0, "", "m"), (2, "", "z")]),
    ],
)
def test_a_walk_goes_on_where_it_stopped_and_round_to_there(
    walk: KeyWalk, last: dict[int, str], expected: list[tuple[int, str, str]]
) -> None:
    assert stretches(walk, last) == expected
