"""Several mirrors: a bad one does not block a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ota.errors import Expired, FetchError, NotInRepository, OtaError, Untrusted, UsageError
from ota.fetch.failures import RequestFailed
from ota.fetch.mirrors import DEMOTED_SECONDS, DownloadRestarted, Mirrors, open_sources
from ota.settings import AgentSettings
from ota.source import RepositorySource
from tests.ota.clock import FakeClock


class Mirror:
    """A source that answers, or fails as the test says."""

    def __init__(self, name: str, error: Callable[[], OtaError] | None = None) -> None:
        self.name, self.error, self.asked = name, error, 0

    def get(self, path: str, most_bytes: int) -> bytes:
        self.asked += 1
        if self.error is not None:
            raise self.error()
        return self.name.encode()

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        yield self.get(path, length)


def get(mirrors: Mirrors, path: str = "x") -> bytes:
    return mirrors.first(lambda source, others: source.get(path, 10))


def down() -> OtaError:
    return FetchError("a is down")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_that_delivers_is_used(clock: FakeClock) -> None:
    a, b = Mirror("a"), Mirror("b")

    assert get(Mirrors([a, b], clock)) == b"a"
    assert b.asked == 0


@pytest.mark.fault("T6")
@pytest.mark.parametrize(
    "error", [down, lambda: NotInRepository("a lacks it"), lambda: Untrusted("a lies"), lambda: Expired("a is old")]
)
def test_a_bad_mirror_does_not_block_a_good_one(clock: FakeClock, error: Callable[[], OtaError]) -> None:
    assert get(Mirrors([Mirror("a", error), Mirror("b")], clock)) == b"b"


@pytest.mark.fault("T6")
def test_a_mirror_that_failed_comes_later_for_a_while(clock: FakeClock) -> None:
    a, b = Mirror("a", down), Mirror("b")
    mirrors = Mirrors([a, b], clock)
    get(mirrors)
    get(mirrors)
    assert (a.asked, b.asked) == (1, 2)

    clock.seconds += DEMOTED_SECONDS
    a.error = None
    assert get(mirrors) == b"a"


@pytest.mark.fault("T6")
def test_a_mirror_that_lied_comes_last_for_the_whole_run(clock: FakeClock) -> None:
    a, b = Mirror("a", lambda: Untrusted("a lies")), Mirror("b")
    mirrors = Mirrors([a, b], clock)
    get(mirrors)
    clock.seconds += 10 * DEMOTED_SECONDS
    b.error = down
    with pytest.raises(FetchError):
        get(mirrors)
    a.error = None
    assert get(mirrors) == b"a"


def test_a_mirror_that_lacks_a_file_is_not_held_against_it(clock: FakeClock) -> None:
    a, b = Mirror("a", lambda: NotInRepository("a lacks it")), Mirror("b")
    mirrors = Mirrors([a, b], clock)
    get(mirrors)
    a.error = None

    assert get(mirrors) == b"a"


def test_a_download_that_starts_over_is_not_held_against_its_mirror(clock: FakeClock) -> None:
    a, b = Mirror("a", lambda: DownloadRestarted("resumed and wrong")), Mirror("b")
    mirrors = Mirrors([a, b], clock)
    with pytest.raises(DownloadRestarted):
        get(mirrors)
    a.error = None

    assert get(mirrors) == b"a"


@pytest.mark.fault("T6")
def test_a_mirror_learns_whether_a_good_one_comes_after_it(clock: FakeClock) -> None:
    a, b, c = Mirror("a", down), Mirror("b", down), Mirror("c", down)
    mirrors = Mirrors([a, b, c], clock)
    seen: list[tuple[str, bool]] = []

    def act(source: RepositorySource, others: bool) -> bytes:
        seen.append((str(getattr(source, "name", "")), others))
        return source.get("x", 10)

    for _ in range(2):
        with pytest.raises(FetchError):
            mirrors.first(act)
    assert seen == [("a", True), ("b", True), ("c", False), ("a", False), ("b", False), ("c", False)]
    clock.seconds += DEMOTED_SECONDS
    b.error = None
    mirrors.first(act)
    assert seen[6:] == [("a", True), ("b", True)]


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([NotInRepository("a"), NotInRepository("b")], NotInRepository),
        ([NotInRepository("a"), FetchError("b")], FetchError),
        ([Untrusted("a"), FetchError("b")], FetchError),
        ([NotInRepository("a"), Expired("b")], Expired),
        ([Untrusted("a")], Untrusted),
        ([RequestFailed("a", again=False), FetchError("b")], FetchError),
    ],
)
def test_the_error_of_all_names_each(clock: FakeClock, errors: list[OtaError], kind: type[OtaError]) -> None:
    def raiser(error: OtaError) -> Callable[[], OtaError]:
        return lambda: error

    with pytest.raises(OtaError) as caught:
        get(Mirrors([Mirror("m", raiser(one)) for one in errors], clock))
    assert type(caught.value) is kind
    assert all(one.args[0] in caught.value.message for one in errors)


def test_urls_and_directories_are_mirrors(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/x").write_bytes(b"here")

    settings = AgentSettings(url=("http://127.0.0.1:1/", "/nowhere", str(tmp_path)))
    assert get(Mirrors(open_sources(settings), clock), "metadata/x") == b"here"
    with pytest.raises(UsageError, match=r"URL is not set: write URL=https://\.\.\. .* that of --config"):
        open_sources(AgentSettings())
