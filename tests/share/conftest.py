"""Share groups are served here before they are elsewhere."""

import pytest

from twisted_broker.cluster import features
from twisted_broker.image.entries import FeatureRange


@pytest.fixture(autouse=True)
def gate(monkeypatch):
    monkeypatch.setitem(features.SUPPORTED_FEATURES, features.SHARE_VERSION, FeatureRange(0, 1))
    monkeypatch.setitem(features.INITIAL_LEVELS, features.SHARE_VERSION, 1)
