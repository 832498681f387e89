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


@pytest.mark.parametrize("error", [OSError("None."), MemoryError("None."), RuntimeError("No.")])
def test_what_hinders_a_preparation_is_said_and_the_command_goes_on(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> Prepared:
        raise error

    monkeypatch.setattr(preparation, "prepare_copy", fail)
    prepare_model(tmp_path)
    assert f"The model was not prepared for a CPU: {error}" in capsys.readouterr().err
    monkeypatch.setattr(preparation, "prepare_copy", lambda *_: Prepared.YES)
    prepare_model(tmp_path)
    assert "not prepared" not in capsys.readouterr().err
