"""What libraries print while they load: not on standard output, shown where loading fails, and never lost for good."""

from __future__ import annotations

import logging
import sys

import pytest

from gtpo_cli.policy.unsloth_policy import _library_output


def fail_to_load() -> None:
    with _library_output():
        sys.stdout.write("Unsloth: your GPU is too old\n")
        raise RuntimeError("no engine")


def test_what_was_printed_is_shown_on_standard_error_where_loading_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no engine"):
        fail_to_load()
    assert capsys.readouterr() == ("", "Unsloth: your GPU is too old\n")


def test_a_banner_is_not_printed_and_a_log_handler_made_meanwhile_goes_on_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As vLLM's: it keeps the stream that was standard output when it was imported."""
    log = logging.Logger("library")
    with _library_output():
        sys.stdout.write("a banner\n")
        log.addHandler(logging.StreamHandler(sys.stdout))
        log.warning("while loading")
    log.warning("an engine that dies later says why")
    sys.stdout.write("ours\n")
    assert capsys.readouterr() == ("ours\n", "an engine that dies later says why\n")
