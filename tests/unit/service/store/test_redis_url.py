import pytest

from headway.service.store.redis_url import SHAPE, Sentinels, check_redis_url, sentinels_of


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (
            "redis+sentinel://a/s",
            Sentinels((("a", 26379),), "s", "redis:///?", None, None),
        ),
        (
            "redis+sentinel://me:p%40ss@a:1,b,[::1]:3/my.master/4?ssl_ca_certs=%2Fca",
            Sentinels(
                (("a", 1), ("b", 26379), ("::1", 3)),
                "my.master",
                "redis://me:p%40ss@/4?ssl_ca_certs=%2Fca",
                None,
                None,
            ),
        ),
        (
            "rediss+sentinel://a:1/s?sentinel_username=u&sentinel_password=p%26w&ssl_certfile=c",
            Sentinels((("a", 1),), "s", "rediss:///?ssl_certfile=c", "u", "p&w"),
        ),
    ],
)
def test_sentinels_are_read_with_what_belongs_to_them_and_to_the_redis(
    url: str, found: Sentinels
) -> None:
    check_redis_url(url)
    assert sentinels_of(url) == found


@pytest.mark.parametrize("url", ["redis://a", "rediss://:x@a:6380/1?ssl_ca_certs=c", "unix:///a"])
def test_other_urls_name_no_sentinels(url: str) -> None:
    check_redis_url(url)
    assert sentinels_of(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://hush",
        "redis+sentinel://hush/",
        "redis+sentinel:///service",
        "redis+sentinel://hush:0/service",
        "redis+sentinel://hush:1,/service",
        "redis+sentinel://hush:many/service",
        "redis+sentinel://hush:99999/service",
        "redis+sentinel://hush:1/a b",
        "redis+sentinel://hush:1/service/first",
        "redis+sentinel://hush:1/service/0/more",
        "unix+sentinel://hush:1/service",
        "sentinel://hush:1/service",
        "redis://hush:99999",
        "hush",
    ],
)
def test_what_is_none_is_said_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="must be redis://") as caught:
        check_redis_url(url)
    assert str(caught.value) == SHAPE
    assert "hush" not in SHAPE
