"""Arithmetic: word problems solved in written steps that end in "Answer: N".

The numbers are computed here, so every step is right; all stay below ten thousand.
"""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: E501, SIM905

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.words import PEOPLE, PLACES

GOODS = tuple(
    "apples pears pens books stamps tickets boxes cards shells coins eggs plates candles bricks chairs "
    "lamps cups bottles flowers buttons marbles posters keys maps ropes tiles nails towels baskets "
    "pencils rolls cakes melons lemons oranges stickers beads".split()
)
HOLDERS = ("box", "bag", "crate", "basket", "tray", "drawer", "carton", "case")
SHOPS = ("market", "bakery", "library", "school", "workshop", "farm", "museum", "kiosk", "garden")
VEHICLES = ("train", "bus", "truck", "ferry", "cyclist", "van", "tram")
ASK = ("", "", " Show the steps.", " Explain step by step.", " Work it out.")
OPENINGS = (
    "Let us work through it step by step.",
    "We go through the problem in order.",
    "Here is the calculation.",
    "We solve it one step at a time.",
    "Let us write down what we know first.",
)
ORDINALS = ("First", "Next", "Then", "After that", "Finally")


@dataclass
class Solution:
    """The steps written so far."""

    lines: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.lines.append(f"Step {len(self.lines) + 1}: {text}")

    def text(self, random: Random, closing: str, answer: int) -> str:
        steps = "\n".join(self.lines)
        return f"{random.choice(OPENINGS)}\n{steps}\n{closing}\nAnswer: {answer}"


def document(random: Random) -> Document:
    user, answer = random.choice(PROBLEMS)(random)
    user += random.choice(ASK)
    return Document(kind="arithmetic", user=user, answer=answer, source="generated")


def add_digits(a: int, b: int) -> str:
    """The sum taken apart into tens and ones, so that each step is small."""
    tens, ones = b - b % 10, b % 10
    if not tens or not ones:
        return f"{a} + {b} = {a + b}"
    return f"{a} + {tens} = {a + tens} and {a + tens} + {ones} = {a + b}, so {a} + {b} = {a + b}"


def take_digits(a: int, b: int) -> str:
    tens, ones = b - b % 10, b % 10
    if not tens or not ones:
        return f"{a} - {b} = {a - b}"
    return f"{a} - {tens} = {a - tens} and {a - tens} - {ones} = {a - b}, so {a} - {b} = {a - b}"


def times_digits(a: int, b: int) -> str:
    tens, ones = a - a % 10, a % 10
    if not tens or not ones:
        return f"{a} * {b} = {a * b}"
    return (
        f"{tens} * {b} = {tens * b} and {ones} * {b} = {ones * b}, "
        f"so {a} * {b} = {tens * b} + {ones * b} = {a * b}"
    )


def shopping(random: Random) -> tuple[str, str]:
    who, what, other = random.choice(PEOPLE), *random.sample(GOODS, 2)
    n, price = random.randint(2, 12), random.randint(2, 25)
    m, cost = random.randint(2, 9), random.randint(2, 15)
    first, second = n * price, m * cost
    total = first + second
    paid = (total // 50 + 1) * 50
    user = (
        f"{who} buys {n} {what} for {price} euros each and {m} {other} for {cost} euros each. "
        f"{who} pays with {paid} euros. How much money does {who} get back?"
    )
    s = Solution()
    s.step(f"The {what} cost {times_digits(price, n)} euros.")
    s.step(f"The {other} cost {times_digits(cost, m)} euros.")
    s.step(f"Together they cost {add_digits(first, second)} euros.")
    s.step(f"{who} pays {paid} euros and gets back {take_digits(paid, total)} euros.")
    return user, s.text(random, f"{who} gets back {paid - total} euros.", paid - total)


def packing(random: Random) -> tuple[str, str]:
    place, what, holder = random.choice(SHOPS), random.choice(GOODS), random.choice(HOLDERS)
    boxes, each, extra = random.randint(4, 40), random.randint(3, 12), random.randint(3, 60)
    sold = random.randint(2, boxes * each // 2)
    full, all_of = boxes * each, boxes * each + extra
    plural = holder + ("es" if holder[-1] == "x" else "s")
    user = (
        f"A {place} has {boxes} {plural} with {each} {what} in every {holder} and {extra} loose {what}. "
        f"Then {sold} {what} are sold. How many {what} are left?"
    )
    s = Solution()
    s.step(f"The {plural} hold {times_digits(boxes, each)} {what}.")
    s.step(f"With the loose {what} there are {add_digits(full, extra)} {what}.")
    s.step(f"After {sold} are sold there are {take_digits(all_of, sold)} {what}.")
    return user, s.text(random, f"The {place} has {all_of - sold} {what} left.", all_of - sold)


def journey(random: Random) -> tuple[str, str]:
    vehicle, start, end = random.choice(VEHICLES), *random.sample(PLACES, 2)
    speed, hours = random.randint(3, 12) * 10, random.randint(2, 6)
    slow, more = random.randint(2, 9) * 5, random.randint(1, 4)
    first, second = speed * hours, slow * more
    total = first + second
    user = (
        f"A {vehicle} leaves {start} for {end}. It travels {hours} hours at {speed} kilometres per hour "
        f"and then {more} hours at {slow} kilometres per hour. How long is the way?"
    )
    s = Solution()
    s.step(f"In the first part the {vehicle} covers {times_digits(speed, hours)} kilometres.")
    s.step(f"In the second part it covers {times_digits(slow, more)} kilometres.")
    s.step(f"The whole way is {add_digits(first, second)} kilometres.")
    closing = f"From {start} to {end} the {vehicle} travels {total} kilometres."
    return user, s.text(random, closing, total)


def sharing(random: Random) -> tuple[str, str]:
    who, what = random.sample(PEOPLE, 3), random.choice(GOODS)
    a, b, c = (random.randint(5, 90) for _ in range(3))
    a += (-(a + b + c)) % 3
    total, each = a + b + c, (a + b + c) // 3
    user = (
        f"{who[0]} has {a} {what}, {who[1]} has {b} {what} and {who[2]} has {c} {what}. They put them "
        f"together and share them equally. How many {what} does each of the three get?"
    )
    s = Solution()
    s.step(f"{who[0]} and {who[1]} have {add_digits(a, b)} {what}.")
    s.step(f"With the {what} of {who[2]} there are {add_digits(a + b, c)} {what}.")
    s.step(f"Three people share them: {total} / 3 = {each}, because {each} * 3 = {total}.")
    return user, s.text(random, f"Each of them gets {each} {what}.", each)


def saving(random: Random) -> tuple[str, str]:
    who, what = (
        random.choice(PEOPLE),
        random.choice(("bicycle", "camera", "guitar", "tent", "desk")),
    )
    weekly, weeks = random.randint(3, 30), random.randint(3, 12)
    start, gift = random.randint(5, 80), random.randint(5, 60)
    saved = weekly * weeks
    total = saved + start + gift
    price = total + random.randint(5, 90)
    user = (
        f"{who} wants to buy a {what} that costs {price} euros. {who} has {start} euros, saves {weekly} "
        f"euros a week for {weeks} weeks and gets {gift} euros as a gift. How much is missing?"
    )
    s = Solution()
    s.step(f"In {weeks} weeks {who} saves {times_digits(weekly, weeks)} euros.")
    s.step(f"With the first money it is {add_digits(saved, start)} euros.")
    s.step(f"With the gift it is {add_digits(saved + start, gift)} euros.")
    s.step(f"The {what} costs {price} euros, so {take_digits(price, total)} euros are missing.")
    return user, s.text(random, f"{who} still needs {price - total} euros.", price - total)


def passengers(random: Random) -> tuple[str, str]:
    vehicle, stops = random.choice(("bus", "train", "tram", "ferry")), random.sample(PLACES, 4)
    aboard = random.randint(20, 90)
    s, words, now = Solution(), [f"A {vehicle} leaves {stops[0]} with {aboard} passengers."], aboard
    for stop in stops[1 : random.randint(3, 4)]:
        leave, board = random.randint(2, now - 3), random.randint(2, 40)
        words.append(f"In {stop} {leave} get off and {board} get on.")
        s.step(f"In {stop} {leave} get off: {take_digits(now, leave)}.")
        s.step(f"In {stop} {board} get on: {add_digits(now - leave, board)}.")
        now += board - leave
    user = " ".join(words) + f" How many passengers are on the {vehicle} now?"
    return user, s.text(random, f"There are {now} passengers on the {vehicle}.", now)


def garden(random: Random) -> tuple[str, str]:
    who, what = random.choice(PEOPLE), random.choice(("garden", "field", "yard", "hall", "terrace"))
    length, width = random.randint(4, 60), random.randint(3, 12)
    price = random.randint(2, 9)
    around = 2 * (length + width)
    user = (
        f"{who} has a {what} that is {length} metres long and {width} metres wide. A fence goes all "
        f"around it and costs {price} euros per metre. What does the fence cost?"
    )
    s = Solution()
    s.step(f"One long side and one short side are {add_digits(length, width)} metres.")
    s.step(f"All four sides are {times_digits(length + width, 2)} metres.")
    s.step(f"The fence costs {times_digits(around, price)} euros.")
    return user, s.text(random, f"{who} pays {around * price} euros for the fence.", around * price)


def pages(random: Random) -> tuple[str, str]:
    who, number = random.choice(PEOPLE), random.randint(150, 480)
    daily, days = random.randint(8, 30), random.randint(2, 5)
    weekend = random.randint(10, 60)
    read = daily * days
    left = number - read - weekend
    if left < 1:
        return pages(random)
    user = (
        f"{who} reads a book of {number} pages: {daily} pages a day on {days} days and {weekend} pages "
        "at the weekend. How many pages are left?"
    )
    s = Solution()
    s.step(f"On the {days} days {who} reads {times_digits(daily, days)} pages.")
    s.step(f"With the weekend it is {add_digits(read, weekend)} pages.")
    s.step(f"The book has {number} pages, so {take_digits(number, read + weekend)} pages are left.")
    return user, s.text(random, f"{who} still has {left} pages to read.", left)


def production(random: Random) -> tuple[str, str]:
    place, what = random.choice(SHOPS), random.choice(GOODS)
    machines, each, hours = random.randint(2, 9), random.randint(3, 20), random.randint(2, 8)
    broken = random.randint(2, 30)
    hourly = machines * each
    made = hourly * hours
    if made <= broken:
        return production(random)
    user = (
        f"In a {place} {machines} people each make {each} {what} per hour. They work {hours} hours, and "
        f"{broken} of the {what} are broken. How many good {what} do they make?"
    )
    s = Solution()
    s.step(f"In one hour they make {times_digits(each, machines)} {what}.")
    s.step(f"In {hours} hours they make {times_digits(hourly, hours)} {what}.")
    s.step(f"Without the broken ones there are {take_digits(made, broken)} {what}.")
    return user, s.text(random, f"They make {made - broken} good {what}.", made - broken)


def ages(random: Random) -> tuple[str, str]:
    who = random.sample(PEOPLE, 3)
    age, older, times = random.randint(4, 20), random.randint(2, 15), random.randint(2, 3)
    second, third = age + older, times * age
    total = age + second + third
    user = (
        f"{who[0]} is {age} years old. {who[1]} is {older} years older than {who[0]}, and {who[2]} is "
        f"{times} times as old as {who[0]}. How old are the three together?"
    )
    s = Solution()
    s.step(f"{who[1]} is {add_digits(age, older)} years old.")
    s.step(f"{who[2]} is {times_digits(age, times)} years old.")
    s.step(f"{who[0]} and {who[1]} together are {add_digits(age, second)} years old.")
    s.step(f"With {who[2]} it is {add_digits(age + second, third)} years.")
    return user, s.text(random, f"Together they are {total} years old.", total)


PROBLEMS: tuple[Callable[[Random], tuple[str, str]], ...] = (
    shopping,
    packing,
    journey,
    sharing,
    saving,
    passengers,
    garden,
    pages,
    production,
    ages,
)
