"""Prose: stories, letters, reviews, descriptions and explanations from a seeded discourse grammar.

Each text follows a plan (opening, turns, ending) and weaves in the details of its prompt. Natural prose
comes from `packages.py`; this module refuses to know it.
"""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: E501, SIM905

from collections.abc import Callable
from random import Random

from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.grammar import Rules, Writer
from engines.demo.train.corpus.topics import TOPICS
from engines.demo.train.corpus.words import PEOPLE, PLACES, article

JOBS = tuple(
    "baker carpenter teacher sailor painter gardener nurse farmer tailor miller pilot cook clerk miner "
    "librarian musician postman fisherman shepherd blacksmith doctor engineer potter weaver".split()
)
OBJECTS = (
    "silver key", "old map", "wooden box", "letter without a name", "broken clock", "small brass bell",
    "blue lantern", "notebook full of drawings", "stone with a hole", "photograph of a stranger",
    "violin with one string", "glass marble", "rusty compass", "coin from another country",
    "red scarf", "tin of seeds", "music box", "pair of tiny shoes", "paper boat", "knitted glove",
)  # fmt: skip
SPOTS = (
    "harbour", "market square", "old mill", "railway station", "bakery", "library", "bridge",
    "lighthouse", "orchard", "chapel", "village school", "river bank", "workshop", "town hall",
    "mountain hut", "ferry landing", "greenhouse", "quarry", "garden behind the inn", "empty house",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
FEELINGS = ("joy", "courage", "regret", "patience", "curiosity", "friendship", "loss", "hope")

COMMON: Rules = {
    "when": (
        "one {daypart}", "early one {daypart}", "late in the {daypart}", "on a {mood} {daypart}",
        "at the end of a {mood} week", "a few days before the first snow", "on the last day of {month}",
        "in the second week of {month}",
    ),
    "daypart": ("morning", "evening", "afternoon"),
    "mood": ("quiet", "windy", "grey", "bright", "cold", "warm", "rainy", "foggy", "still", "busy"),
    "month": ("March", "April", "May", "June", "July", "September", "October", "November"),
    "weather": (
        "the rain had stopped", "fog lay over the roofs", "the wind came from the sea",
        "the sun stood low", "snow was falling softly", "the air smelled of wood smoke",
        "the streets were still wet", "the sky was the colour of slate", "a thin mist hung in the trees",
    ),
    "slowly": ("slowly", "carefully", "without a word", "with a smile", "quickly", "at last", "gently"),
    "sound": (
        "a dog barked somewhere", "a door closed in the distance", "the church bell struck {hour}",
        "someone was singing behind a window", "a cart rolled over the stones",
        "gulls cried above the chimneys", "water dripped from the gutters",
    ),
    "hour": ("four", "five", "six", "seven", "eight", "nine", "ten"),
    "elder": (
        "an old neighbour", "the oldest woman in the street", "a retired teacher", "the man at the kiosk",
        "a cousin from the north", "the keeper of the archive", "a friend from school", "the innkeeper",
    ),
    "detail": (
        "the paint was peeling from the door", "a cat slept on the window sill",
        "two chairs stood in the sun", "the shelves were full of jars", "a lamp burned in the corner",
        "a bicycle leaned against the wall", "the floor was covered with leaves",
        "someone had left a cup on the step", "ivy grew over the gate",
    ),
}  # fmt: skip

STORY: Rules = {
    **COMMON,
    "open": (
        "{when} {name}, {ajob} from {place}, walked to the {spot}.",
        "{name} had worked as {ajob} in {place} for {years} years when it happened.",
        "nobody in {place} knew the {spot} better than {name}, the {job}.",
        "there was once {ajob} called {name} who lived near the {spot} in {place}.",
        "{when} {weather} in {place}, and {name} the {job} could not sleep.",
    ),
    "years": ("seven", "ten", "twelve", "twenty", "thirty"),
    "scene": (
        "{weather}, and {sound}.", "{detail}, and {sound}.", "{weather} and {detail}.",
        "everything was as usual: {detail}, {sound}.", "it was {mood} there, and {detail}.",
    ),
    "find": (
        "under a {place_small} lay {aobject}.", "there, beside a {place_small}, was {aobject}.",
        "{name} looked down and saw {aobject} behind a {place_small}.",
        "then {name} noticed {aobject} half hidden by a {place_small}.",
        "a child came running, gave {name} {aobject} and ran away again.",
    ),
    "place_small": ("bench", "stone", "barrel", "fallen branch", "broken step", "sack of flour",
                    "pile of nets", "loose board", "flower pot"),
    "think": (
        "who could have left it there?", "it seemed to belong to another time.",
        "{name} turned it over {slowly} and found a date scratched into it.",
        "it was lighter than it looked, and strangely warm.",
        "for a moment {name} wanted to put it back and forget it.",
        "it looked like something from a story that a grandmother tells.",
        "a feeling of {feeling} came over {name} that was hard to explain.",
    ),
    "ask": (
        "{name} showed the {object} to {elder}, who looked at it {slowly}.",
        "{when} {name} asked {elder} about the {object}.",
        "{elder} laughed and then grew serious at the sight of the {object}.",
        "so {name} went to {elder} and put the {object} on the table.",
    ),
    "answer": (
        '"it was lost {ago}," came the answer, "and many have looked for it."',
        '"keep it until the owner comes back," was the advice.',
        '"my father made it {ago}," said the voice, "for somebody who left {place}."',
        '"there used to be two of them," {name} was told, "and the other one is at the {spot_two}."',
        '"you should not have brought it here," said the other {slowly}.',
    ),
    "ago": ("before the war", "forty years ago", "when the bridge was built", "in the year of the flood",
            "long before you were born", "in a winter like this one"),
    "trouble": (
        "but the next day the {object} was gone.", "on the way home a storm broke loose.",
        "then a stranger arrived who asked too many questions.",
        "but nobody at the {spot_two} wanted to talk about it.",
        "that night somebody knocked three times and did not wait.",
        "soon the whole street was talking, and not kindly.",
        "the road to the {spot_two} was closed, and time was short.",
    ),
    "turn": (
        "{name} did not give up and went to the {spot_two} alone.",
        "in the end it was a child who knew the way to the {spot_two}.",
        "{name} waited at the {spot_two} until it was dark, and then {sound}.",
        "it took three days and a good deal of {feeling} to learn the truth.",
        "at the {spot_two} {detail}, and somebody was already waiting.",
    ),
    "truth": (
        "the {object} had belonged to {friend}, who had left {place} {ago}.",
        "it turned out that {friend} had hidden it as a sign for a lost brother.",
        "{friend} had carried it over the sea and back, and never told anybody.",
        "it was {friend} who had put it there, hoping that the right person would come.",
    ),
    "end": (
        "since then {name} keeps it on the shelf and thinks of {feeling} whenever {weather_now}.",
        "{name} and {friend} have been friends ever since.",
        "they sat together until morning, and neither of them felt the cold.",
        "today the {object} lies in a glass case, and children ask about it.",
        "{name} went back to work the next day, but something had changed.",
        "and if you visit the {spot} in {place}, you can still hear the story.",
    ),
    "weather_now": ("it rains", "the wind turns", "the first snow falls", "the bell rings", "fog comes in"),
}  # fmt: skip


def story(random: Random) -> tuple[str, str]:
    name, friend = random.sample(PEOPLE, 2)
    spot, spot_two = random.sample(SPOTS, 2)
    job, thing, place = random.choice(JOBS), random.choice(OBJECTS), random.choice(PLACES)
    bound = {
        "name": name, "friend": friend, "spot": spot, "spot_two": spot_two, "job": job, "place": place,
        "ajob": article(job), "object": thing.removesuffix(" without a name"),
        "aobject": article(thing), "feeling": random.choice(FEELINGS),
    }  # fmt: skip
    writer = Writer(random, STORY, bound)
    plan = ["open", "scene", "find", "think", "ask", "answer"]
    if random.random() < 0.4:
        plan.append("think")
    first = writer.paragraph(plan)
    second = writer.paragraph(["trouble", "turn", "scene", "truth", "end"])
    user = random.choice(
        (
            "Write a short story about {name}, {ajob} from {place}, who finds {aobject} near the {spot}.",
            "Tell a story in which {name}, {ajob} in {place}, finds {aobject} at the {spot}.",
            "A short story, please: {name} is {ajob} in {place} and finds {aobject} by the {spot}.",
        )
    ).format(**bound)
    user += random.choice(
        ("", f" It should be about {bound['feeling']}.", f" {friend} appears in it.")
    )
    return user, f"{first}\n\n{second}"


LETTER: Rules = {
    **COMMON,
    "thanks": (
        "thank you for your letter, which came {when}.",
        "it has been far too long since I last wrote to you.",
        "I hope that you and everybody at home are well.",
        "I am writing from {place}, where {weather}.",
        "your news made me very happy, and I have read it {times}.",
    ),
    "times": ("twice", "three times", "to everybody here", "aloud at supper"),
    "news": (
        "here {detail}, and I often sit by the window.", "work at the {spot} goes on as ever.",
        "{when} I met {elder}, who asked about you.", "the days are {mood} and the nights are long.",
        "I have started to learn the names of the birds.", "since {month} I live near the {spot}.",
        "the children have grown, and the youngest can read now.",
        "last week {sound} while we were at table, and we all had to laugh.",
    ),
    "matter": (
        "the real reason for this letter is {subject}.", "now to {subject}, which you asked about.",
        "there is something I must tell you about {subject}.",
        "I have thought a great deal about {subject}.",
    ),
    "view": (
        "at first I did not know what to say.", "{elder} thinks we should wait until {month}.",
        "I believe it is better to act than to regret.", "it will cost more than we thought.",
        "everybody here has another opinion, as you can imagine.",
        "to be honest, I was afraid of it for a long time.", "it may turn out to be a blessing.",
        "nothing has been decided, and nothing will be without you.",
    ),
    "plan": (
        "if the weather holds, I will come to {place_two} in {month}.",
        "could you meet me at the {spot_two} when you are in {place}?",
        "please bring the papers when you come, and a warm coat.",
        "we could walk to the {spot_two} and talk it over in peace.",
        "let me know by the end of {month} what you would like to do.",
        "I will keep a bed ready for you, as always.",
    ),
    "bye": ("with warm greetings,", "yours as ever,", "with love from all of us,", "your old friend,"),
}  # fmt: skip
SUBJECTS = (
    "the old house", "the wedding", "the lost luggage", "our plan to open a shop", "the garden wall",
    "the new job", "the journey to the coast", "the sale of the boat", "the concert in the church",
    "grandmother's birthday", "the broken roof", "the dog we found", "the school in the village",
    "the money you lent me", "the apple harvest", "the letter from the lawyer",
)  # fmt: skip


def letter(random: Random) -> tuple[str, str]:
    name, friend = random.sample(PEOPLE, 2)
    place, place_two = random.sample(PLACES, 2)
    spot, spot_two = random.sample(SPOTS, 2)
    bound = {
        "name": name, "friend": friend, "place": place, "place_two": place_two, "spot": spot,
        "spot_two": spot_two, "subject": random.choice(SUBJECTS),
    }  # fmt: skip
    writer = Writer(random, LETTER, bound)
    first = writer.paragraph(["thanks", "thanks", "news", "news"][random.randint(0, 1) :])
    second = writer.paragraph(["matter", "view", "view", "view"][: random.randint(3, 4)])
    third = writer.paragraph(["plan", "plan", "news"][: random.randint(2, 3)])
    bye = writer.sentence("bye")
    user = random.choice(
        (
            "Write a letter from {name} in {place} to {friend} in {place_two} about {subject}.",
            "{name} lives in {place} and writes to {friend} in {place_two} about {subject}. Write the letter.",
            "Please write a friendly letter to {friend} in {place_two} about {subject}, signed by {name} from {place}.",
        )
    ).format(**bound)
    return user, f"Dear {friend},\n\n{first}\n\n{second}\n\n{third}\n\n{bye}\n{name}"


REVIEW: Rules = {
    **COMMON,
    "arrive": (
        "we came to {the} {house} in {place} {when}, and {weather}.",
        "I spent two nights at {the} {house} in {place} in {month}.",
        "friends had told us about this {house} in {place}, so we went there {when}.",
        "if you look for {ahouse} in {place}, you will sooner or later end up here.",
    ),
    "the": ("the little", "the well known", "the new", "the family-run"),
    "first": (
        "{detail}, which made a good first impression.", "a friendly young man took our coats.",
        "we had to wait a while, but nobody seemed to mind.", "inside it was {mood}, and {sound}.",
        "the room is not large, but there is space for everybody.",
    ),
    "praise": (
        "what I liked most was {good}.", "{good} alone is worth the journey.",
        "above all I have to praise {good}.", "{good}: simply wonderful.",
    ),
    "why": (
        "one can tell that somebody takes care here.", "I have seldom seen anything like it.",
        "{elder} at the next table said the same.", "it reminded me of holidays long ago.",
        "the owner told us that it has been so for {years} years.",
    ),
    "years": ("five", "ten", "twenty", "fifty"),
    "but": (
        "less convincing was {bad}.", "on the other hand there is {bad}.",
        "the only thing to complain about is {bad}.", "{bad} was a disappointment, I must say.",
    ),
    "mend": (
        "a few small changes would help.", "perhaps we came on the wrong day.",
        "when we mentioned it, they promised to do something about it.",
        "for this price one may expect a little more.", "others may not even notice it.",
    ),
    "sum": (
        "all in all I would come back, best of all in {season}.",
        "we will certainly return, and bring more time.", "I can recommend it to anybody who likes {like}.",
        "for {like} there are better places, but the evening was well spent.",
        "so: four stars out of five, and a greeting to the kitchen.",
    ),
    "like": ("peace and quiet", "good company", "simple things", "old houses", "long evenings"),
}  # fmt: skip
HOUSES = (
    "hotel",
    "cafe",
    "restaurant",
    "museum",
    "guest house",
    "theatre",
    "bookshop",
    "inn",
    "bakery",
)
GOOD = (
    "the view over the river", "the fresh bread", "the kindness of the people", "the quiet courtyard",
    "the collection of old maps", "the piano in the corner", "the soup of the day", "the large windows",
    "the garden", "the careful lighting", "the breakfast", "the choice of teas",
)  # fmt: skip
BAD = (
    "the noise from the street", "the narrow stairs", "the price of the drinks", "the slow service",
    "the cold floor", "the hard chairs", "the lack of parking space", "the thin walls",
    "the short opening hours", "the smell of paint", "the long queue", "the small portions",
)  # fmt: skip


def review(random: Random) -> tuple[str, str]:
    house, good, bad = random.choice(HOUSES), random.choice(GOOD), random.choice(BAD)
    bound = {
        "house": house, "ahouse": article(house), "place": random.choice(PLACES), "good": good,
        "bad": bad, "season": random.choice(SEASONS),
    }  # fmt: skip
    writer = Writer(random, REVIEW, bound)
    first = writer.paragraph(["arrive", "first", "first"][: random.randint(2, 3)])
    second = writer.paragraph(["praise", "why", "why", "praise"][: random.randint(2, 4)])
    third = writer.paragraph(["but", "mend", "mend", "sum", "sum"][random.randint(0, 1) :])
    user = random.choice(
        (
            "Write a review of {ahouse} in {place}. The writer likes {good} but not {bad}.",
            "Review {ahouse} in {place}: praise {good}, criticise {bad}.",
            "I was at {ahouse} in {place}. I liked {good}, but {bad} was a problem. Write my review.",
        )
    ).format(**bound)
    return user, f"{first} {second}\n\n{third}"


PLACE: Rules = {
    **COMMON,
    "see": (
        "in {season} the {spot} of {place} shows its best side.",
        "whoever comes to {place} in {season} should first go to the {spot}.",
        "the {spot} lies a short walk from the centre of {place}.",
        "there are many places in {place}, but none is like the {spot} in {season}.",
    ),
    "light": (
        "{weather}, and the light changes by the minute.", "in the {daypart} {detail}.",
        "{detail}, and behind it the hills begin.", "when {weather}, hardly anybody is about.",
        "the colours are {mood} at this time of the year.",
    ),
    "people": (
        "a {job} sells {ware} from a small cart.", "{elder} feeds the birds there every {daypart}.",
        "children play between the walls, and {sound}.",
        "two people argue about the price of {ware}.", "a {job} on the way home stops to look at {ware}.",
        "visitors ask for the way and stay longer than they wanted.",
    ),
    "job": JOBS,
    "ware": ("apples", "old books", "roasted nuts", "fish", "honey", "flowers", "postcards", "wool",
             "cheese", "candles", "clay pots"),
    "past": (
        "it was built {ago}, and burned down twice.", "long ago ships from {place_two} landed here.",
        "an inscription tells of a flood {ago}.", "it is said that a {job} from {place_two} is buried here.",
        "once there was a wall around it, of which only a gate is left.",
    ),
    "ago": ("three hundred years ago", "under an almost forgotten king", "after the great fire",
            "in the time of the guilds", "when the river still ran here"),
    "sense": (
        "it smells of {smell} and {smell}.", "one hears {heard} and sometimes {heard}.",
        "the air tastes of {smell}, and {sound}.", "from below comes {heard}.",
    ),
    "smell": ("salt", "tar", "fresh bread", "wet leaves", "coffee", "hay", "smoke", "soap", "apples"),
    "heard": ("the beat of hammers", "the sound of bells", "a distant train", "the cry of gulls",
              "laughter", "running water", "an accordion", "the wind in the wires"),
    "close": (
        "then it grows dark, and the windows light up one after another.",
        "one leaves with the feeling of {feeling}.", "those who have been here once come again.",
        "in an hour all of it will look different, and that is the beauty of it.",
        "nothing happens, and yet one could watch it for hours.",
    ),
}  # fmt: skip


def place(random: Random) -> tuple[str, str]:
    where, other = random.sample(PLACES, 2)
    bound = {
        "place": where, "place_two": other, "spot": random.choice(SPOTS),
        "season": random.choice(SEASONS), "feeling": random.choice(FEELINGS),
    }  # fmt: skip
    writer = Writer(random, PLACE, bound)
    first = writer.paragraph(["see", "light", "people", "sense", "light"][: random.randint(4, 5)])
    second = writer.paragraph(["past", "people", "past", "sense", "people"][: random.randint(3, 5)])
    third = writer.paragraph(["light", "close", "close"][random.randint(0, 1) :])
    user = random.choice(
        (
            "Describe the {spot} of {place} in {season}.",
            "Write a description of the {spot} in {place} on a day in {season}.",
            "What does the {spot} of {place} look like in {season}? Mention {place_two}.",
            "Paint a picture in words: {place} in {season}, at the {spot}, with a sense of {feeling}.",
        )
    ).format(**bound)
    return user, f"{first}\n\n{second} {third}"


EXPLAIN: Rules = {
    "what": (
        "{Topic} is {gist}.", "put simply, {topic} is {gist}.", "by {topic} we mean {gist}.",
        "at first sight {topic} looks like magic, but it is only {gist}.",
    ),
    "parts": (
        "it consists of {part}, {part} and {part}.", "three things matter here: {part}, {part} and {part}.",
        "the most important parts are {part} and {part}.", "without {part} and {part} nothing would work.",
    ),
    "start": (
        "everything begins when {step}.", "first of all {step}.", "to begin with, {step}.",
        "the process starts as soon as {step}.",
    ),
    "next": (
        "then {step}.", "after that {step}.", "as a result {step}.", "at the same time {step}.",
        "because of this {step}.", "next {step}.", "meanwhile {step}.",
    ),
    "image": (
        "you can think of it as {image}.", "it is a little like {image}.",
        "a good picture for it is {image}.", "imagine {image}.",
    ),
    "trouble": (
        "a common problem is that {problem}.", "it becomes difficult when {problem}.",
        "things go wrong if {problem}.", "the weak point is well known: {problem}.",
    ),
    "cure": (
        "this is why people {care}.", "for this reason it helps to {care}.",
        "the best remedy is to {care}.", "whoever wants to avoid this should {care}.",
    ),
    "purpose": (
        "it is used for {use} and for {use}.", "without it, {use} would hardly be possible.",
        "today we need it above all for {use}.", "it plays a part in {use} as well as in {use}.",
    ),
    "end": (
        "once one has understood this, the rest is easy.", "the idea is simple; the details take practice.",
        "it is a good example of how small causes have large effects.",
        "so the next time you see it, you will know what is going on.",
        "much of it was found by trial and error, long before anybody could explain it.",
        "engineers and amateurs alike still improve it today.",
    ),
}  # fmt: skip


def explanation(random: Random) -> tuple[str, str]:
    name = random.choice(tuple(TOPICS))
    topic = TOPICS[name]
    rules = {**EXPLAIN, "part": topic.parts, "step": topic.steps, "problem": topic.problems,
             "care": topic.cares, "use": topic.uses, "image": topic.images, "gist": topic.gists}  # fmt: skip
    writer = Writer(random, rules, {"topic": name, "Topic": name[0].upper() + name[1:]})
    use, problem = random.choice(topic.uses), random.choice(topic.problems)
    writer.left = {
        "step": list(reversed(topic.steps)),
        "use": [*(item for item in topic.uses if item != use), use],
        "problem": [*(item for item in topic.problems if item != problem), problem],
    }
    first = writer.paragraph(["what", "parts", "image"][: random.randint(2, 3)])
    steps = ["start", "next", "next", "next", "next"][: random.randint(4, 5)]
    second = writer.paragraph(steps)
    third = writer.paragraph(
        ["trouble", "cure", "purpose", "trouble", "end"][random.randint(0, 1) :]
    )
    reader = random.choice(
        ("a child", "a beginner", "a visitor", "my class", "a friend", "readers")
    )
    user = random.choice(
        (
            "Explain how {0} works.", "How does {0} work? Explain it to {1}.", "What is {0}?",
            "Please explain {0} to {1}.", "Write a short text for {1} about {0}.",
        )
    ).format(name, reader) + random.choice(
        ("", f" Mention {use}.", f" What happens if {problem}?", f" Mention {use}, and that {problem}.")
    )  # fmt: skip
    return user, f"{first}\n\n{second}\n\n{third}"


GENRES: tuple[Callable[[Random], tuple[str, str]], ...] = (
    story,
    story,
    letter,
    review,
    place,
    explanation,
    explanation,
)


def document(random: Random) -> Document:
    user, answer = random.choice(GENRES)(random)
    return Document(kind="prose", user=user, answer=answer, source="generated")
