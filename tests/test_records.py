"""`frozen`, `slotted`, and `entity` make what `dataclass` makes, and compile it later."""

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace

import pytest

from edge_serve import records
from edge_serve.records import compile_records, entity, frozen, slotted


@frozen
class Point:
    """A value."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)
    secret: str = field(default="s", repr=False, compare=False)


@frozen
class Deep(Point):
    z: int = 3

    def __post_init__(self) -> None:
        if self.z < 0:
            raise ValueError("z is negative")


@frozen
class Own:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _fresh() -> type:
    @frozen
    class Fresh:
        x: int
        y: int = 2

    return Fresh


def test_the_class_is_a_data_class_with_slots() -> None:
    point = Point(1)
    assert is_dataclass(type(point))
    assert [one.name for one in fields(Point)] == ["x", "y", "names", "secret"]
    assert not hasattr(point, "__dict__")
    assert asdict(point) == {"x": 1, "y": 2, "names": [], "secret": "s"}
    assert replace(point, y=5) == Point(1, 5)
    match point:
        case Point(1, y):
            assert y == 2


def test_the_methods_are_those_of_dataclass() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2, names=[])"
    assert Point(1) == Point(1, secret="other") != Point(2)
    assert Point(1) != Deep(1)
    assert Point(1).names is not Point(1).names
    with pytest.raises(TypeError, match=r"^Point.__init__\(\) missing 1 required positional argument: 'x'$"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Point.__init__\(\) got an unexpected keyword argument 'w'"):
        Point(1, w=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("__init__", lambda cls: cls(1)),
        ("__repr__", lambda cls: repr(cls.__new__(cls))),
        ("__eq__", lambda cls: cls.__new__(cls) == cls.__new__(cls)),
        ("__hash__", lambda cls: hash(cls.__new__(cls))),
    ],
    ids=["init", "repr", "eq", "hash"],
)
def test_what_is_called_is_compiled_and_nothing_else(name: str, use: Callable[[type], object]) -> None:
    cls = _fresh()

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: int = 2

    methods = ("__init__", "__repr__", "__eq__", "__hash__")
    before = {one: vars(cls)[one] for one in methods}
    with contextlib.suppress(AttributeError):  # an object without values has no text, and is not equal to another one
        use(cls)
    assert [one for one in methods if vars(cls)[one] is not before[one]] == [name]
    assert cls(1) == cls(1, 2)
    assert hash(cls(1)) == hash(Fresh(1))
    assert repr(cls(1, 3)).endswith("Fresh(x=1, y=3)")
    for one in methods:
        assert vars(cls)[one].__code__.co_varnames == vars(Fresh)[one].__code__.co_varnames, one


def test_a_value_does_not_change() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        point.other = 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x


def test_a_subclass_has_the_fields_of_its_base_and_checks_its_values() -> None:
    assert repr(Deep(1, z=4)) == "Deep(x=1, y=2, names=[], z=4)"
    with pytest.raises(ValueError, match="z is negative"):
        Deep(1, z=-1)


def test_methods_of_the_class_stay() -> None:
    assert repr(Own("A")) == "<A>"
    assert Own("A") == Own("a")
    assert len({Own("A"), Own("a")}) == 1


def test_values_are_copied_and_pickled() -> None:
    point = Point(1, names=["a"])
    assert pickle.loads(pickle.dumps(point)) == copy.copy(point) == point
    deep = copy.deepcopy(point)
    assert deep == point
    assert deep.names is not point.names


def test_a_class_without_a_text_gets_its_name() -> None:
    assert Deep.__doc__ == "Deep"
    assert Point.__doc__ == "A value."


@slotted
class Count:
    """State."""

    name: str
    number: int = 0
    seen: list[int] = field(default_factory=list)
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.number


@entity
class Place:
    name: str


def test_state_changes_and_has_no_hash() -> None:
    count = Count("a", number=2)
    assert (count.twice, count.seen) == (4, [])
    count.number = 3
    assert count != Count("a", 3)
    count.twice = 6
    assert count == Count("a", 3)
    assert repr(count) == "Count(name='a', number=3, seen=[], twice=6)"
    assert not hasattr(count, "__dict__")
    with pytest.raises(AttributeError):
        count.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)
    assert copy.deepcopy(count) == count == pickle.loads(pickle.dumps(count))


def test_an_entity_is_equal_to_itself_alone() -> None:
    place = Place("a")
    assert place != Place("a")
    assert len({place, Place("a")}) == 2
    assert repr(place).endswith("Place(name='a')")


def test_a_hash_of_its_own_stays_and_keywords_stay_keywords() -> None:
    @slotted
    class Named:
        name: str
        number: int = field(default=0, kw_only=True)

        def __hash__(self) -> int:
            return hash(self.name)

    assert hash(Named("a", number=2)) == hash("a")
    assert Named("a") == Named("a") != Named("a", number=1)
    with pytest.raises(TypeError, match="positional argument"):
        Named("a", 2)  # type: ignore[call-arg]


def test_threads_that_call_a_method_first_at_the_same_time_both_get_their_objects() -> None:
    for _ in range(50):
        cls = _fresh()
        barrier = threading.Barrier(4)

        def make(cls: type = cls, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return cls(3).x + cls(4, y=5).y  # type: ignore[no-any-return]

        with ThreadPoolExecutor(4) as pool:
            assert [one.result() for one in [pool.submit(make) for _ in range(4)]] == [8] * 4


def test_each_init_is_compiled_ahead() -> None:
    @slotted
    class Later:
        x: int

    before = vars(Later)["__init__"], vars(Later)["__repr__"]
    compile_records()
    assert vars(Later)["__init__"] is not before[0]
    assert vars(Later)["__repr__"] is before[1]
    assert not records._waiting
    assert Later(x=1).x == 1
