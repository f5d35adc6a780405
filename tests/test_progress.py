"""What a long cell shows of its work."""

from types import SimpleNamespace

import pandas as pd
import pytest

from tutorial_lib.instruments import widgets
from tutorial_lib.instruments.widgets import progress


def test_words_and_a_table_are_replaced_in_place_and_gone_at_the_end(monkeypatch):
    seen = []

    def display(first, *, display_id):
        assert display_id
        seen.append(first.data)
        return SimpleNamespace(update=lambda shown: seen.append(shown.data))

    monkeypatch.setattr(progress, "display", display)

    def stopped():
        with widgets.doing("first & alone") as tell:
            tell("lever 2 of 7", pd.DataFrame({"peak": ["3.2 GiB"]}))
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert seen[:2] == ["", "<p><em>first &amp; alone ...</em></p>"]
    assert "lever 2 of 7" in seen[2]
    assert "3.2 GiB" in seen[2]
    assert seen[3:] == [""]  # what nbval compares is the same, whatever was shown between
