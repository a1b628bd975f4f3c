"""Lexica shared by the generators: things, their fields, people and places.

Knows nothing about kinds of documents; everything here is a constant or draws from the generator passed in.
"""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: E501, SIM905

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A named, typed attribute of a thing with sample values as Python literals."""

    name: str
    type_name: str
    values: tuple[str, ...]


THINGS: tuple[str, ...] = tuple(
    "invoice sensor book ticket parcel recipe lesson player match flight hotel engine bridge garden "
    "patient visit sample order product shipment account employee project task meeting message photo "
    "track album song route station train vehicle battery window device printer camera server request "
    "session report contract budget payment coupon basket review comment article chapter student course "
    "exam grade animal plant tree harvest field river mountain weather storm reading signal channel "
    "packet folder document backup snapshot release version branch commit build deployment incident "
    "alarm badge locker room building floor kitchen meal menu guest booking event concert museum "
    "exhibit painting statue letter stamp coin token wallet loan deposit branch_office machine tool "
    "spare_part warehouse pallet crate container harbour vessel voyage crew_member passenger".split()
)

FIELDS: tuple[Field, ...] = (
    Field(name="name", type_name="str", values=('"alpha"', '"north"', '"basic"')),
    Field(name="title", type_name="str", values=('"draft"', '"summary"', '"intro"')),
    Field(name="status", type_name="str", values=('"open"', '"closed"', '"pending"')),
    Field(name="category", type_name="str", values=('"general"', '"special"', '"internal"')),
    Field(name="owner", type_name="str", values=('"anna"', '"ben"', '"clara"')),
    Field(name="city", type_name="str", values=('"Oslo"', '"Lyon"', '"Porto"')),
    Field(name="colour", type_name="str", values=('"red"', '"green"', '"blue"')),
    Field(name="label", type_name="str", values=('"first"', '"main"', '"spare"')),
    Field(name="unit", type_name="str", values=('"kg"', '"m"', '"s"')),
    Field(name="language", type_name="str", values=('"en"', '"de"', '"fr"')),
    Field(name="email", type_name="str", values=('"info@example.org"', '"sales@example.org"')),
    Field(name="path", type_name="str", values=('"data"', '"logs"', '"tmp"')),
    Field(name="code", type_name="str", values=('"A1"', '"B2"', '"C3"')),
    Field(name="source", type_name="str", values=('"manual"', '"import"', '"sensor"')),
    Field(name="quantity", type_name="int", values=("1", "5", "12")),
    Field(name="count", type_name="int", values=("0", "3", "10")),
    Field(name="size", type_name="int", values=("8", "64", "256")),
    Field(name="year", type_name="int", values=("1999", "2010", "2024")),
    Field(name="age", type_name="int", values=("7", "30", "65")),
    Field(name="level", type_name="int", values=("1", "2", "3")),
    Field(name="priority", type_name="int", values=("1", "3", "5")),
    Field(name="duration", type_name="int", values=("30", "60", "90")),
    Field(name="capacity", type_name="int", values=("10", "50", "100")),
    Field(name="retries", type_name="int", values=("0", "3", "5")),
    Field(name="pages", type_name="int", values=("12", "120", "400")),
    Field(name="points", type_name="int", values=("0", "15", "40")),
    Field(name="distance", type_name="float", values=("1.5", "12.0", "80.0")),
    Field(name="price", type_name="float", values=("9.5", "20.0", "99.9")),
    Field(name="weight", type_name="float", values=("0.5", "2.5", "70.0")),
    Field(name="height", type_name="float", values=("1.2", "1.8", "3.0")),
    Field(name="width", type_name="float", values=("0.8", "2.0", "4.5")),
    Field(name="speed", type_name="float", values=("5.0", "50.0", "120.0")),
    Field(name="temperature", type_name="float", values=("-5.0", "20.5", "37.0")),
    Field(name="pressure", type_name="float", values=("1.0", "2.2", "9.8")),
    Field(name="rate", type_name="float", values=("0.1", "0.5", "0.9")),
    Field(name="balance", type_name="float", values=("0.0", "100.0", "2500.0")),
    Field(name="discount", type_name="float", values=("0.0", "0.1", "0.25")),
    Field(name="amount", type_name="float", values=("10.0", "45.5", "300.0")),
    Field(name="active", type_name="bool", values=("True", "False")),
    Field(name="visible", type_name="bool", values=("True", "False")),
    Field(name="verified", type_name="bool", values=("True", "False")),
    Field(name="urgent", type_name="bool", values=("True", "False")),
)

PEOPLE: tuple[str, ...] = tuple(
    "Anna Ben Clara David Elena Felix Greta Hugo Ines Jonas Karin Leo Maria Nils Olga Paul Rosa Simon "
    "Tara Umar Vera Wanda Yusuf Zoe Amir Bianca Carlos Diana Emil Fiona Georg Hana Ivan Julia Kofi Lena "
    "Marco Nora Oscar Petra Ravi Sofia Tom Uma Victor Wen Yara Adam Berta Cyril Dora Erik Flora".split()
)

PLACES: tuple[str, ...] = tuple(
    "Oslo Lyon Porto Vienna Prague Dublin Bergen Geneva Krakow Seville Naples Turin Ghent Malmo Basel "
    "Graz Lille Cork Split Tartu Riga Bruges Leeds Utrecht Aarhus Trieste Granada Salzburg".split()
)


def class_name(thing: str) -> str:
    return "".join(part.capitalize() for part in thing.split("_"))


def plural(thing: str) -> str:
    if thing.endswith(("s", "x", "ch", "sh")):
        return thing + "es"
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return thing[:-1] + "ies"
    return thing + "s"


def spoken(thing: str) -> str:
    """The thing's name as words of a sentence."""
    return thing.replace("_", " ")


def article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def some(random: Random, items: Sequence[Item], low: int, high: int) -> list[Item]:
    """Between low and high different items, in random order."""
    return random.sample(list(items), random.randint(low, high))


def fields(random: Random, low: int, high: int) -> list[Field]:
    return some(random, FIELDS, low, high)
