"""The stage of the mesh labs: everyone gets the same rows and gives the same results, on skewed and uniform data."""

from __future__ import annotations

import numpy as np
import pytest

from lab.mesh_streams import STREAMS, Streams
from lab.mesh_throughput import compete, interval, paired


@pytest.mark.parametrize("streams", [Streams(skew=0.3, batch=400, window=800), Streams(False, batch=400, window=800)])
def test_competitors_agree(streams: Streams) -> None:
    ran = compete(streams, batches=2, seed=1)
    assert {"mesh", "plan"} == set(ran)
    assert len({competitor.results for competitor in ran.values()}) == 1
    assert ran["mesh"].results > 0


def test_a_stream_is_rare_in_one_partition_only() -> None:
    (rows,) = Streams(batch=20_000, window=1_000).batches(1, np.random.default_rng(1))
    for place, name in enumerate(STREAMS):
        content = rows[name].payload.column("c").to_numpy()
        (keys,) = rows[name].codes.values()
        partition = np.minimum(content, 2)
        common = [float((keys[partition == part] >= 0).mean()) for part in range(3)]
        assert common[place % 3] == pytest.approx(0.05, abs=0.02)
        assert min(common[part] for part in range(3) if part != place % 3) == 1.0


def test_two_competitors_take_turns_and_their_ratio_has_an_interval() -> None:
    ratios = paired(Streams(False, batch=200, window=400), batches=5, seed=1)
    assert len(ratios) == 5
    assert ratios.min() > 0
    low, high = interval(ratios, seed=1)
    assert low <= np.median(ratios) <= high
