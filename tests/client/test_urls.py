from __future__ import annotations

import pytest

from onward.urls import shown


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("redis://u:secret@h:1/0", "redis://h:1/0"),
        ("redis://:secret@h", "redis://h"),
        ("https://svc:sec%40ret@h/onward", "https://h/onward"),
        ("http://secret@h", "http://h"),
        ("redis://:not/quoted@secret?@h/0", "redis://h/0"),
        ("unix:///s?password=secret&db=1", "unix:///s?password=***&db=1"),
        ("no server at 'redis://:secret@h': refused", "no server at 'redis://h': refused"),
        ("http://h:1/path", "http://h:1/path"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("mail to ada@example.org", "mail to ada@example.org"),
    ],
)
def test_a_url_is_shown_without_user_and_password(url: str, as_shown: str) -> None:
    assert shown(url) == as_shown
