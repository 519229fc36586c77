"""Values that are read into types, by several threads at once."""

import subprocess
import sys

import msgspec
import pytest

from agent_pipeline.structs import convert_value, decode_json, json_decoder

FIRST_USES = """
import faulthandler, sys, threading
import msgspec
from agent_pipeline.structs import convert_value, decode_json

faulthandler.enable()
sys.setswitchinterval(1e-6)  # threads change places in the middle of a description
for number in range(60):
    inner = msgspec.defstruct("Inner", [(f"f{i}", int | None, None) for i in range(10)])
    middle = msgspec.defstruct("Middle", [(f"g{i}", list[inner] | None, None) for i in range(10)])
    outer = msgspec.defstruct("Outer", [(f"h{i}", dict[str, middle] | None, None) for i in range(10)])
    reads = [
        lambda outer=outer: decode_json('{"h9": {"a": {"g9": [{"f9": 1}]}}}', outer),
        lambda middle=middle: convert_value({"g9": [{"f9": 1}]}, middle),
        lambda inner=inner: convert_value([{"f9": 1}], list[inner]),
    ]
    barrier = threading.Barrier(9)

    def read(function):
        barrier.wait()
        function()

    threads = [threading.Thread(target=read, args=(reads[i % 3],)) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""
"""Nine threads that use the same new types for the first time, sixty times."""


class Person(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    friends: "list[Person]" = []


def test_first_uses_by_several_threads() -> None:
    """msgspec's own functions die with a segmentation fault here, in each of six tries."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USES], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_values() -> None:
    ann = Person("Ann", [Person("Ben")])
    value = {"name": "Ann", "friends": [{"name": "Ben"}]}
    assert decode_json(msgspec.json.encode(value), Person) == ann
    assert convert_value([value], list[Person]) == [ann]
    assert json_decoder(Person) is json_decoder(Person)


@pytest.mark.parametrize("value", [{}, {"name": 1}, {"name": "Ann", "age": 3}])
def test_values_of_another_form(value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        convert_value(value, Person)
    with pytest.raises(msgspec.ValidationError):
        decode_json(msgspec.json.encode(value), Person)
