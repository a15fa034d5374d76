"""The list of models: found in their files, and no heavy library imported for it."""

from __future__ import annotations

import subprocess
import sys

from pipemare_exp import models


def test_listing_models_imports_neither_torch_nor_fairseq():
    script = (
        "import sys; from pipemare_exp import models; models.images('resnet20'); models.taking('tokens');"
        "sys.exit(any(name in sys.modules for name in ('torch', 'torchvision', 'fairseq')))"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_what_each_model_takes():
    assert models.images("digits_resnet") == (1, 8, 8) and models.images("transformer") is None
    assert models.taking("images", (1, 8, 8)) == ["digits_resnet"]
    assert models.taking("sentences") == ["transformer", "transformer_iwslt_de_en"]
    assert models.taking("tokens") == ["gpt_tiny", "gpt_small", "gpt2"]
