"""What the explanations are about: per topic its parts, steps, problems, cures, uses and images."""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: E501

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Phrases that fit the slots of the explanation grammar; every tuple is drawn from at random."""

    gists: tuple[str, ...]
    parts: tuple[str, ...]
    steps: tuple[str, ...]
    problems: tuple[str, ...]
    cares: tuple[str, ...]
    uses: tuple[str, ...]
    images: tuple[str, ...]


TOPICS: dict[str, Topic] = {
    "a steam engine": Topic(
        gists=("a machine that turns heat into motion", "a way to make hot water do work"),
        parts=("a boiler", "a cylinder", "a piston", "a flywheel", "a valve"),
        steps=("the fire heats the water", "steam collects under pressure", "the steam pushes the piston",
               "the rod turns the wheel", "the used steam escapes", "the valve lets new steam in"),
        problems=("the pressure rises too far", "the valve leaks", "lime settles in the boiler"),
        cares=("fit a safety valve", "clean the boiler often", "watch the gauge"),
        uses=("pumps", "locomotives", "ships", "mills"),
        images=("a kettle whose lid keeps lifting", "a giant that breathes in and out"),
    ),
    "bread dough": Topic(
        gists=("a mixture that lives", "flour and water brought to life by yeast"),
        parts=("flour", "water", "salt", "yeast", "time"),
        steps=("the flour takes up the water", "the yeast begins to eat sugar", "small bubbles form",
               "the dough grows to twice its size", "the baker folds it", "the crust turns brown in the oven"),
        problems=("the kitchen is too cold", "there is too much salt", "the dough rests too long"),
        cares=("keep the bowl warm", "weigh everything", "be patient"),
        uses=("loaves", "rolls", "pizza", "sweet pastry"),
        images=("a balloon filled by a thousand tiny helpers", "a sponge that builds itself"),
    ),
    "a suspension bridge": Topic(
        gists=("a road that hangs from cables", "a clever balance of pull and push"),
        parts=("two towers", "strong cables", "hangers", "a deck", "heavy anchors"),
        steps=("the weight of the cars presses on the deck", "the hangers pull at the cables",
               "the cables pass the load to the towers", "the towers press into the ground",
               "the anchors hold the ends", "the deck bends a little and comes back"),
        problems=("the wind makes the deck swing", "rust eats the wires", "the ground gives way"),
        cares=("stiffen the deck", "paint the cables", "test every bolt"),
        uses=("crossing wide rivers", "deep valleys", "busy harbours"),
        images=("a washing line with a heavy coat on it", "two people who hold a rope between them"),
    ),
    "the tide": Topic(
        gists=("the slow breathing of the sea", "the answer of the water to the moon"),
        parts=("the moon", "the sun", "the turning earth", "the shape of the coast"),
        steps=("the moon pulls at the water", "the water rises on the near side", "the earth turns below it",
               "the flood reaches the coast", "the water runs off again", "the sun helps or hinders"),
        problems=("a storm comes from the sea", "sun and moon stand in one line", "the bay is narrow"),
        cares=("read the tables", "build dikes", "leave the beach in time"),
        uses=("sailing into harbours", "small power stations", "the life of mussels"),
        images=("a blanket that is pulled around a ball", "a bath in which somebody moves"),
    ),
    "a mechanical clock": Topic(
        gists=("a machine that counts small swings", "a spring that is let go one tick at a time"),
        parts=("a spring", "a pendulum", "gear wheels", "an escapement", "two hands"),
        steps=("the spring pulls at the first wheel", "the wheels pass the force on",
               "the escapement stops them for a moment", "the pendulum swings and frees one tooth",
               "the hands move by a small step", "the pendulum gets a little push"),
        problems=("dust gets into the oil", "the room grows warm", "nobody winds the spring"),
        cares=("keep it clean", "wind it on the same day each week", "place it on a firm wall"),
        uses=("telling the time", "navigation at sea", "church towers"),
        images=("a gate that lets one sheep pass at a time", "a child on a swing who counts aloud"),
    ),
    "photosynthesis": Topic(
        gists=("the way in which plants make food from light", "a kitchen that runs on sunshine"),
        parts=("sunlight", "water", "air", "green leaves", "small pores"),
        steps=("the leaf catches the light", "the roots bring up water", "the pores let in air",
               "the plant splits the water", "sugar is built step by step", "oxygen leaves the leaf"),
        problems=("the soil is dry", "the days are short", "dust covers the leaves"),
        cares=("water in the evening", "give plants a bright place", "choose the right soil"),
        uses=("all our food", "the air we breathe", "wood", "cotton"),
        images=("a tiny factory with a glass roof", "a cook who needs only light and water"),
    ),
    "a refrigerator": Topic(
        gists=("a pump that carries heat outside", "a box from which warmth is taken away"),
        parts=("a compressor", "a cooling fluid", "thin pipes", "a thermostat", "a tight door"),
        steps=("the compressor presses the gas together", "the gas grows hot and gives off heat",
               "it becomes liquid in the pipes", "the liquid expands inside", "it takes heat from the food",
               "the gas returns to the compressor"),
        problems=("the door does not close", "ice grows on the walls", "the back stands too near the wall"),
        cares=("clean the seals", "let warm food cool first", "leave room for the air"),
        uses=("keeping milk fresh", "medicine", "cold drinks in summer"),
        images=("a bucket that carries water out of a boat", "a sponge that soaks up warmth"),
    ),
    "a library catalogue": Topic(
        gists=("a list that knows where every book stands", "the memory of a library"),
        parts=("titles", "authors", "subjects", "shelf marks", "an index"),
        steps=("a new book arrives", "the librarian notes author and title", "a subject is chosen",
               "the book gets a shelf mark", "the entry is put in order", "the reader finds the shelf"),
        problems=("a book stands on the wrong shelf", "two authors have the same name", "a card is lost"),
        cares=("check the shelves once a year", "use fixed rules", "write clearly"),
        uses=("finding books", "research", "keeping count of loans"),
        images=("a map of a town made of paper", "a friend who never forgets an address"),
    ),
    "a sailing boat": Topic(
        gists=("a boat that is driven by the wind", "a wing that stands upright in the water"),
        parts=("a mast", "a sail", "a keel", "a rudder", "ropes"),
        steps=("the wind fills the sail", "the sail pushes the boat sideways", "the keel resists",
               "the boat slides forward", "the rudder keeps the course", "the crew trims the sheets"),
        problems=("the wind turns suddenly", "the sail is too large", "the boat heels too far"),
        cares=("reef in time", "watch the sky", "wear a life jacket"),
        uses=("fishing", "travel", "sport", "the joy of quiet days"),
        images=("a wet seed pressed between two fingers", "a kite that pulls a heavy friend"),
    ),
    "memory": Topic(
        gists=("the power to keep what has passed", "a store that changes whenever we use it"),
        parts=("attention", "sleep", "repetition", "feelings", "habits"),
        steps=("we notice something", "the brain links it with what we know", "sleep makes the links firm",
               "we recall it from time to time", "some details fade", "the story becomes shorter"),
        problems=("we do two things at once", "we are tired", "similar facts get mixed up"),
        cares=("repeat things aloud", "sleep enough", "write a short note"),
        uses=("learning", "finding the way home", "friendship"),
        images=("a path in the grass that many feet keep open", "a drawer that is sorted at night"),
    ),
    "a telephone network": Topic(
        gists=("a web that joins any two voices", "a large switchboard without people"),
        parts=("a microphone", "wires", "exchanges", "radio masts", "numbers"),
        steps=("the voice becomes a signal", "the phone calls the nearest mast", "the exchange reads the number",
               "a free path is searched", "the other phone rings", "the signal becomes sound again"),
        problems=("a cable breaks", "too many people call at once", "a hill stands in the way"),
        cares=("build a second path", "place masts on high ground", "share the load"),
        uses=("talking", "calling for help", "sending pictures"),
        images=("a railway on which words travel", "a spider that feels each thread"),
    ),
    "compost": Topic(
        gists=("earth that is made from leftovers", "a slow fire without a flame"),
        parts=("leaves", "kitchen scraps", "air", "moisture", "worms"),
        steps=("leaves and scraps are piled up", "bacteria begin to eat", "the heap grows warm",
               "fungi break down the wood", "worms mix the layers", "dark soil remains"),
        problems=("the heap is too wet", "no air gets in", "somebody adds plastic"),
        cares=("turn it now and then", "mix dry and wet things", "cover it in heavy rain"),
        uses=("vegetable beds", "flower pots", "young trees"),
        images=("a kitchen in which the guests are very small", "a bank that pays back in spring"),
    ),
    "a market price": Topic(
        gists=("an agreement between many strangers", "the point at which buyers and sellers meet"),
        parts=("buyers", "sellers", "goods", "costs", "expectations"),
        steps=("a seller names a price", "some buyers walk on", "others begin to bargain",
               "goods become scarce", "the price rises", "new sellers come to the market"),
        problems=("one seller owns everything", "nobody knows the quality", "rumours spread"),
        cares=("compare several stalls", "publish prices", "wait a day"),
        uses=("planning a harvest", "running a shop", "deciding what to build"),
        images=("a pair of scales that is never quite still", "an auction without a hammer"),
    ),
    "a compass": Topic(
        gists=("a needle that knows where north is", "a small magnet that can turn freely"),
        parts=("a needle", "a pivot", "a dial", "a case"),
        steps=("the earth acts like a large magnet", "the needle feels its pull", "it swings to and fro",
               "it comes to rest", "the walker turns the dial", "the map is laid beside it"),
        problems=("iron lies nearby", "the needle sticks", "one forgets the deviation"),
        cares=("keep knives away", "hold it level", "check it with the sun"),
        uses=("hiking", "sailing", "drawing maps"),
        images=("a dog that always looks towards home", "a finger that cannot be bent"),
    ),
    "snow": Topic(
        gists=("frozen water in its most patient form", "rain that had time to build crystals"),
        parts=("cold air", "water vapour", "dust", "crystals"),
        steps=("damp air rises", "vapour freezes on a grain of dust", "six arms begin to grow",
               "crystals catch on one another", "flakes sink to the ground", "the layer settles"),
        problems=("a warm wind comes", "layers do not hold together", "the roof is flat"),
        cares=("clear the roof in time", "read the avalanche report", "walk on firm ground"),
        uses=("water in spring", "winter sport", "shelter for seeds"),
        images=("a blanket with more air than wool", "a letter that is written on the way down"),
    ),
    "a choir": Topic(
        gists=("many voices that agree to be one", "an instrument made of people"),
        parts=("sopranos", "altos", "tenors", "basses", "a conductor"),
        steps=("the conductor raises a hand", "everybody breathes in", "the basses give the ground",
               "the upper voices enter", "the chords grow and fade", "silence follows the last note"),
        problems=("the pitch sinks", "one voice is too loud", "nobody looks up"),
        cares=("listen to the neighbour", "practise each part alone", "warm up the voice"),
        uses=("festivals", "church services", "plain pleasure"),
        images=("a flock of birds that turns at the same moment", "a carpet woven in the air"),
    ),
    "a vaccine": Topic(
        gists=("a lesson for the defences of the body", "a harmless rehearsal of an illness"),
        parts=("a harmless piece of the germ", "white blood cells", "antibodies", "memory cells"),
        steps=("the body meets the harmless piece", "white cells examine it", "antibodies are made",
               "some cells remember the shape", "years later the real germ arrives", "it is stopped early"),
        problems=("the germ changes", "the memory fades", "too few people take part"),
        cares=("refresh it after some years", "store it cold", "keep a record"),
        uses=("protecting children", "travel", "ending epidemics"),
        images=("a wanted poster on every corner", "a fire drill in a school"),
    ),
    "a water mill": Topic(
        gists=("a wheel that borrows the strength of a stream", "an old partner of the river"),
        parts=("a wheel", "a channel", "a shaft", "gears", "two stones"),
        steps=("a dam holds the water back", "the channel leads it to the wheel", "the blades are pushed down",
               "the shaft begins to turn", "the gears drive the upper stone", "grain becomes flour"),
        problems=("the summer is dry", "ice blocks the wheel", "the stones grow smooth"),
        cares=("keep the channel free", "sharpen the stones", "grease the bearings"),
        uses=("grinding grain", "sawing wood", "forging iron"),
        images=("a staircase on which water walks down", "a hamster wheel for a river"),
    ),
}  # fmt: skip
