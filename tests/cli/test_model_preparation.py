"""What whoever adds a model is told of its preparation."""

from pathlib import Path

import pytest

from cli.model_preparation import prepare_model
from gpu_pool.worker import preparation
from gpu_pool.worker.preparation import Prepared


@pytest.mark.parametrize("loses_patience", [True, False])
def test_who_interrupts_hears_that_the_model_is_there(
    loses_patience: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def prepare(*_: object) -> Prepared:
        if loses_patience:
            raise KeyboardInterrupt
        return Prepared.YES

    monkeypatch.setattr(preparation, "prepare_copy", prepare)
    if loses_patience:
        with pytest.raises(KeyboardInterrupt):
            prepare_model(tmp_path)
    else:
        prepare_model(tmp_path)
    said = capsys.readouterr()
    assert ("Added, but not prepared" in said.err) == loses_patience
    assert not said.out
