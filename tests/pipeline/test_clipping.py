"""Which clips there are, and which a real pipeline can have."""

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.clipping import check_clip, check_clip_of_runtime


@pytest.mark.parametrize("clip", [("all", 1.0), ("stage", 0.0), ("global", -1.0)])
def test_a_wrong_clip_is_refused(clip) -> None:
    with pytest.raises(UserError, match=str(clip[1])):
        check_clip(clip)


def test_clipping_by_the_norm_over_all_stages() -> None:
    with pytest.raises(UserError, match="stages update at different moments"):
        check_clip_of_runtime("global", 2)
    with pytest.raises(UserError, match="stages update at different moments"):
        check_clip_of_runtime("global")
    check_clip_of_runtime("global", 1)
    check_clip_of_runtime("stage", 4)
