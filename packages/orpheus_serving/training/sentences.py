# ruff: noqa: E501  (tables of words and rules)
"""Sentences for a teacher to read: a small grammar over a word list, so that nobody's text is copied.

    word list (by frequency) + part-of-speech lexicon -> words by class -> grammar -> sentences, one a line

The speech model must learn how English is spelled, so what counts is coverage: every common word several times, in
many neighbourhoods, at every length from one word to some twenty-five. Sense does not matter; rhythm does, hence
questions, lists, asides, dialogue, dates, sums, times, spelled letters and single words. Numbers are written as words,
as the text front end writes them. `--kind everyday` starts from plain talk instead (see `everyday`).

`wordfreq` ranks the words and `textblob` ships the lexicon: both give facts about single words, no sentences.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

from .everyday import EVERYDAY

RUN = 6  # words in a row that no sentence shares with a held-out one

TAGS = {
    "NN": "noun",
    "NNS": "nouns",
    "JJ": "adj",
    "VB": "verb",
    "VBD": "past",
    "VBZ": "verbs",
    "VBG": "ing",
    "RB": "adv",
}

# Not for a voice that greets newcomers.
LEFT_OUT = re.compile(
    r"fuck|shit|sex|porn|nude|rape|nigg|bitch|^ass|dick|cock|puss|cunt|whore|slut|^cum|tits|boob|peni|vagin|nazi|hitler"
)


def listed(words: str) -> list[str]:
    return words.split()


NAMES = listed(
    "James Mary John Linda Robert Susan Michael Karen David Lisa William Nancy Richard Betty Joseph Helen Thomas Sandra "
    "Charles Donna Daniel Carol Matthew Ruth Anthony Sharon Mark Michelle Paul Laura Steven Sarah Andrew Kimberly Kenneth "
    "Joshua Jessica Kevin Brian Cynthia George Angela Edward Melissa Ronald Brenda Timothy Amy Jason Anna Jeffrey Rebecca "
    "Ryan Jacob Gary Nicholas Eric Jonathan Amanda Stephen Stephanie Larry Justin Christine Scott Marie Brandon Janet Frank "
    "Catherine Benjamin Gregory Ann Samuel Joyce Patrick Alice Alexander Julie Jack Heather Dennis Teresa Tyler Gloria Aaron "
    "Henry Jean Peter Adam Douglas Katherine Nathan Emily Olivia Sophia Noah Liam Lucas Emma Mia Leo Zoe Max Dan Jess Zac "
    "Leah Tara Ava Ben Cleo Tom Kate Maria Carlos Priya Ahmed Chen Yuki Omar Nina Oscar Grace Lucy Ella Ethan Owen"
)
PLACES = listed(
    "London Paris Chicago Boston Texas California Florida Canada Mexico Germany France Spain Italy India China Japan Brazil "
    "Africa Europe America Australia Seattle Denver Dallas Toronto Berlin Madrid Rome Moscow Tokyo Sydney Dublin Vienna "
    "Ireland Scotland England Egypt Kenya Norway Sweden Poland Greece Turkey Amsterdam Oxford Cambridge Houston Atlanta Miami"
)
PLACES += ["New York", "San Francisco", "Los Angeles", "New Zealand", "South Africa", "Hong Kong"]
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
ONES = listed("one two three four five six seven eight nine")
TEENS = listed("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
ORDINALS = listed(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    "twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"
)

# A rule is a list of alternatives; {name} is another rule, a word class or a function of the grammar.
RULES: dict[str, str] = {
    "det": "the|the|the|the|a|a|my|your|his|her|our|their|this|that|every|another|each|no",
    "dets": "the|the|these|those|some|many|all the|most|a few|several|both|my|your|our|their|any|more|other",
    "who": "I|you|he|she|we|they|it|{name}|{name}|somebody|nobody|everyone|someone|my friend|my sister|my brother|"
    "my mother|my father|the teacher|the doctor|the driver|our neighbour|the children|people|the manager|the police",
    "they": "you|I|we|they|he|she|{name}|people|the kids",
    "thing": "{det} {noun}|{det} {noun}|{det} {adj} {noun}|{det} {adj} {noun}|{dets} {nouns}|{dets} {adj} {nouns}|"
    "the {noun} of {det} {noun}|{name}|{number} {nouns}|{det} {noun} {noun}",
    "subject": "{who}|{thing}|{who}|{thing}|{name}",
    "object": "{thing}|{thing}|{thing}|me|him|her|them|us|you|it|{name}|something|nothing|everything|that",
    "prep": "in|on|at|with|from|for|about|under|over|near|after|before|without|through|behind|into|between|during|"
    "against|around|across|above|below|beside|inside|outside|along|toward|until|since|by|to|of",
    "place": "in {city}|in the kitchen|at home|at work|at school|in the garden|on the table|in the park|by the river|"
    "on the train|at the station|in the car|on the phone|at the airport|in the middle of the {noun}|near the {noun}|"
    "on the second floor|in front of the {noun}|next to the {noun}|at the end of the {noun}|down the street|"
    "across the road|in the library|at the market|in the office|on the corner|at the hotel|in the living room",
    "pp": "{prep} {thing}|{prep} {det} {noun}|{place}|{place}|{prep} {nouns}",
    "time": "{day}|on {day}|on {day} {part}|in {month}|today|tomorrow|yesterday|tonight|last night|next week|last year|"
    "every day|right now|this morning|this afternoon|in a minute|at noon|soon|at {clock}|at {clock}|all day|"
    "the day after tomorrow|two weeks ago|{number} years ago|in {number} minutes|for {number} days|once a week|"
    "before breakfast|after lunch|at the weekend|in the evening|by {day}|since {month}|on {month} {ordinal}|for a while",
    "part": "morning|afternoon|evening|night",
    "clock": "{hour} o'clock|{hour} thirty|{hour} fifteen|{hour} forty-five|half past {hour}|quarter to {hour}|"
    "quarter past {hour}|{hour} {teen}|{hour} oh five|{hour} p m|{hour} a m|{hour} thirty in the {part}|{hour} twenty",
    "hour": "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve",
    "modal": "will|can|should|could|would|might|must|did not|does not|can't|won't|may|never|don't|didn't|wouldn't|"
    "want to|need to|have to|like to|try to|used to|are going to|couldn't|shouldn't|had to|ought to|wanted to|"
    "decided to|forgot to|plan to|hope to|began to|seem to|would rather|would like to|cannot",
    "intro": "I think|I guess|I hope|I know|I'm sure|I don't believe|do you think|maybe|you know|well,|okay, so|actually,|"
    "honestly,|I told you|I heard that|please remember that|it seems|it looks like|thank you, but|sorry, but|of course|"
    "by the way,|in fact,|for example,|the problem is that|the good news is that|she said|he said|they said|I wonder if|"
    "luckily,|in the end|first of all,|after all,|I'm afraid|it turns out|remember,|look,|listen,|yes,|no,|oh,|perhaps|"
    "at first|as usual,|to be fair,|in other words,|did you know that|I can't believe|I'm glad|it's true that|"
    "I wish|we all know|I was told that|suddenly|meanwhile,|however,|unfortunately,|finally,|then|sometimes|usually",
    "degree": "very|too|not|really|quite|so|more|less|always|a bit|almost|pretty|rather|extremely|never|still|already",
    "be": "is|was|looks|seems|feels|sounds|became|will be|isn't|wasn't|has been|can be|might be|is not|used to be",
    "wh": "where|when|why|how|what",
    "aux": "did|do|can|should|would|could|will|don't|didn't|must|might|shall",
    "join": "and|but|so|while|because|until|although|when|before|after|as|if|since|unless|and then|even though",
    "vp": "{past} {object}|{past} {object} {pp}|{past} {pp}|{adv} {past} {object}|{modal} {verb} {object}|"
    "{modal} {verb} {object} {pp}|{modal} {verb} {pp}|{past} {object} {time}|{modal} {verb} {object} {time}|"
    "{be} {adj}|{be} {degree} {adj}|{past} and {past} {object}",
    "clause": "{subject} {vp}|{subject} {vp}|{who} {vp}|{who} {vp}|there was {det} {noun} {pp}",
    "short": "{verb} {object}|{adj} {noun}|{adv}|{noun}|{verb} it {time}|not {adj}|{det} {noun}|so {adj}|very {adj}|"
    "{intro} {adj}|{ing} {nouns}|{number}|{number} {nouns}|{pp}|{time}|too {adj}|how {adj}|what a {adj} {noun}|{name}",
    "hello": "hello|hi|hey|good morning|good evening|welcome|thanks|goodbye|yes|no|okay|sure|sorry|please|of course|"
    "thank you|thank you very much|see you {time}|never mind|not yet|no problem|you're welcome|excuse me|good night|"
    "all right|got it|exactly|absolutely|I see|go ahead|wait|stop|really|right|one moment, please|just a second|"
    "no thanks|yes, please|that's right|that's fine|maybe later|I don't know|come in|be careful|good luck|well done|"
    "congratulations|happy birthday|take care|have a nice day|nice to meet you|how are you|what's up|let's go|I'm fine",
    "chat": "{hello}|{hello}, {name}|{hello}. {clause}|{hello}, {name}. {question}|{hello}! {clause}|{hello}. {question}",
    "question": "{wh} {aux} {they} {verb} {object}?|{wh} {aux} {they} {verb}?|{aux} {they} {verb} {object}?|"
    "{aux} {they} {verb} {object} {time}?|{aux} {they} {verb} {object} {pp}?|what is {thing}?|where is {thing}?|"
    "is {thing} {adj}?|are {dets} {nouns} {adj}?|how {adj} is {thing}?|how many {nouns} {aux} {they} {verb}?|"
    "how much is {det} {noun}?|who {past} {thing}?|which {noun} {aux} {they} {verb}?|have you ever {past} {thing}?|"
    "can you {verb} {object}, please?|could you {verb} {object} {time}?|would you like {det} {adj} {noun}?|"
    "do you want to {verb} {object}?|what time is it?|what about {thing}?|why don't we {verb} {object}?|"
    "are you {ing} {object} {time}?|was it {adj}?|isn't {thing} {adj}?|what kind of {noun} is that?|"
    "is there {det} {noun} {place}?|may I {verb} {object}?|how long {aux} {they} {verb}?|whose {noun} is this?|"
    "did {subject} {verb} {object} or {object}?|{name}, {aux} you {verb} {thing}?|shall we {verb} {place}?",
    "sentence": "{clause}|{clause}|{clause}|{clause}|{intro} {clause}|{intro} {clause}|{intro} {clause}|"
    "{clause} {join} {clause}|{clause}, {join} {clause}|{clause}, {join} {clause}|if {clause}, {clause}|"
    "when {clause}, {clause}|{intro} {clause}, {join} {clause}|{time}, {clause}|{clause} {time}|"
    "{ing} {object} {be} {adj}|the {noun} of {thing} {be} {adj}|{who} {verbs} {object} {pp}|{thing} {verbs} {object}|"
    "I'm {ing} {object} {pp}|we're {ing} {object} {time}|she's {ing} {object}|he was {ing} {pp}|they were {ing} {object}|"
    "it's {degree} {adj}|it's a {adj} {noun}|that's {det} {noun}|there are {number} {nouns} {place}|there's {thing} {pp}|"
    "please {verb} {object} {pp}|please {verb} {object} {time}|don't {verb} {object}|let's {verb} {object} {time}|"
    "let me {verb} {object}|I'll {verb} {object} {time}|we've {past} {object}|you'll {verb} {object}|he'd {verb} {object}|"
    "I've {past} {thing} {time}|{name} and {name} {vp}|{noun}, {noun}, {adj} {noun} and {noun}|{nouns}, {nouns} and {nouns}|"
    "{thing}, which {vp}, {vp}|{who}, {who} and {who} {vp}|{thing} that {vp} {vp}|{thing} {vp}, not {thing}|"
    "not only {subject} but also {subject} {vp}|{subject} {be} {adj} and {adj}|{subject} {be} {degree} {adj} {pp}|"
    "the more {they} {verb}, the more {they} {verb}|either {clause} or {clause}|{clause}; {clause}|{thing}: {thing}",
    "figures": "the {noun} costs {number} dollars|it takes {number} minutes|{number} plus {number} is {number}|"
    "the answer is {number}|call me at {digits}|my number is {digits}|page {number}|room {number}|chapter {number}|"
    "{number} percent of the {nouns} {vp}|{number} point {digit} {digit}|it was {month} {ordinal}, {year}|in {year} {clause}|"
    "{subject} {past} {number} {nouns} {pp}|the {ordinal} {noun} {vp}|at {clock} {clause}|on {day} the {ordinal} {clause}|"
    "{number} of the {number} {nouns}|about {number} {nouns} {vp}|the train leaves at {clock} from platform {number}|"
    "{number} dollars and {number} cents|minus {number} degrees|{digits}|{letters}|the {letters} {noun} {vp}|"
    "version {digit} point {digit}|flight {digits} {vp}|my name is {name}, that's {letters}|{number} by {number}|"
    "{who} {be} {number} years old|the meeting is on {day} at {clock}|from {clock} to {clock}|half of the {nouns} {vp}|"
    "one third of {thing}|twice as {adj} as {thing}|{number} miles {prep} {city}|{number} pounds of {noun}|the {year}s",
    "listing": "{any} {any}|{any}, {any}, {any}|{any} {any} {any} {any}|{any}, {any} and {any}|{any} {any} {any}|"
    "the word is {any}|say {any} again|{any}|not {any} but {any}|{any} or {any}|I said {any}, not {any}|{any} {any} {any} {any} {any} {any}",
    "all": "{sentence}|{sentence}|{sentence}|{sentence}|{sentence}|{question}|{question}|{figures}|{listing}|{chat}|{short}|"
    "{sentence}|{sentence}|{sentence}. {sentence}|{question} {sentence}",
}


def words_by_class(size: int) -> dict[str, list[str]]:
    """The `size` most frequent English words by class, most frequent first; class `any` holds them all."""
    import textblob
    from wordfreq import top_n_list

    lexicon: dict[str, str] = {}
    for line in (Path(textblob.__file__).parent / "en" / "en-lexicon.txt").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) == 2 and not line.startswith(";;;"):
            lexicon.setdefault(fields[0], fields[1])
    words = [w for w in top_n_list("en", size) if re.fullmatch(r"[a-z]{2,14}|i|a", w) and not LEFT_OUT.search(w)]
    classes: dict[str, list[str]] = {name: [] for name in TAGS.values()} | {"any": words}
    for word in words:
        if name := TAGS.get(lexicon.get(word, "")):
            classes[name].append(word)
    classes["adv"] = [w for w in classes["adv"] if w.endswith("ly")]
    return classes


class Grammar:
    """Draws sentences. The same words and seed give the same sentences."""

    def __init__(self, classes: dict[str, list[str]], seed: int) -> None:
        self.random = random.Random(seed)
        self.classes = classes
        self.rules = {name: text.split("|") for name, text in (RULES | EVERYDAY).items()}

    def word(self, name: str) -> str:
        """A word of a class: frequent ones more often, every one now and then."""
        words = self.classes[name]
        return words[int(len(words) * self.random.random() ** (1.0 if name == "any" else 1.6))]

    def number(self) -> str:
        r = self.random.random()
        if r < 0.3:
            return self.random.choice(ONES)
        if r < 0.45:
            return self.random.choice(TEENS)
        if r < 0.7:
            return self.random.choice(TENS) + ("-" + self.random.choice(ONES) if self.random.random() < 0.7 else "")
        if r < 0.88:
            tail = " and " + self.below_hundred() if self.random.random() < 0.4 else ""
            tail = tail or (" " + self.below_hundred() if self.random.random() < 0.4 else "")
            return self.random.choice(ONES) + " hundred" + tail
        if r < 0.96:
            tail = " " + self.random.choice(ONES) + " hundred" if self.random.random() < 0.5 else ""
            return self.below_hundred() + " thousand" + tail
        return self.below_hundred() + self.random.choice([" million", " billion", " million", " zero"])

    def below_hundred(self) -> str:
        r = self.random.random()
        if r < 0.3:
            return self.random.choice(ONES)
        return self.random.choice(TEENS) if r < 0.5 else self.random.choice(TENS) + "-" + self.random.choice(ONES)

    def year(self) -> str:
        return self.random.choice(["nineteen ", "twenty ", "eighteen ", "two thousand and "]) + self.below_hundred()

    def slot(self, name: str) -> str:
        pick = self.random.choice
        if name in self.rules:
            return self.expand(pick(self.rules[name]))
        if name in self.classes:
            return self.word(name)
        match name:
            case "name":
                return pick(NAMES)
            case "city":
                return pick(PLACES)
            case "day":
                return pick(DAYS)
            case "month":
                return pick(MONTHS)
            case "ordinal":
                return pick(ORDINALS)
            case "teen":
                return pick(TEENS + TENS[:3])
            case "digit":
                return pick([*ONES, "zero", "oh"])
            case "digits":
                return " ".join(pick([*ONES, "zero"]) for _ in range(self.random.randint(3, 7)))
            case "letters":
                return " ".join(pick("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(self.random.randint(2, 5)))
            case "number":
                return self.number()
            case "year":
                return self.year()
        raise KeyError(name)

    def expand(self, rule: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: self.slot(m.group(1)), rule)

    def sentence(self, kind: str) -> str:
        """`kind` is the rule to begin with: "all" or "everyday"."""
        return finish(self.expand(f"{{{kind}}}"), self.random)

    def coverage(self, per_line: int) -> list[str]:
        """Every word once, a few words a line."""
        words = list(self.classes["any"])
        self.random.shuffle(words)
        lines = (words[i : i + per_line] for i in range(0, len(words), per_line))
        return [finish((", " if i % 2 else " ").join(line), self.random) for i, line in enumerate(lines)]


def finish(text: str, rng: random.Random) -> str:
    """Articles before vowels, capitals, a full stop where the rule gave none."""
    text = re.sub(r" +(?=[ ?.,!])", "", text.strip()).replace("?.", "?")
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    text = re.sub(r"\bi\b", "I", re.sub(r",,+", ",", text)).replace(",.", ".").replace("? ?", "?")
    text = re.sub(r"(^|[.?!] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)
    if text[-1] not in ".?!":
        text += rng.choices([".", "!", ""], [0.88, 0.06, 0.06])[0]
    return text


def runs(text: str) -> set[str]:
    """Every `RUN` words in a row, or all the words of a shorter text."""
    words = re.sub(r"[^a-z' ]", " ", text.lower()).split()
    return {" ".join(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def make_sentences(count: int, vocabulary: int, seed: int, held_out: Sequence[str] = (), kind: str = "all") -> list[str]:
    """`count` different sentences of at most 26 words and 170 characters, none of them in `held_out`.

    Plain talk could come close to held-out sentences, so of it none shares `RUN` words in a row with one of them.
    """
    grammar = Grammar(words_by_class(vocabulary), seed)
    bare = {re.sub(r"[^a-z ]", "", s.lower()) for s in held_out}
    taken = set().union(*map(runs, held_out)) if kind == "everyday" else set()
    lines: dict[str, None] = {}
    if kind == "all":
        hellos = [finish(h, grammar.random) for h in grammar.rules["hello"] if "{" not in h]
        lines = dict.fromkeys(hellos + grammar.coverage(4) + grammar.coverage(7))
    if len(lines) > count // 2:  # a small set cannot cover the vocabulary: keep it varied instead
        lines = {}
    while len(lines) < count:
        line = grammar.sentence(kind)
        if len(line.split()) < 5 and grammar.random.random() < 0.6:  # the grammar is fond of short ones
            continue
        if re.sub(r"[^a-z ]", "", line.lower()) in bare or taken & runs(line):
            continue
        if len(line) <= 170 and len(line.split()) <= 26:
            lines[line] = None
    shuffled = list(lines)[:count]
    grammar.random.shuffle(shuffled)
    return shuffled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="text file to write, one sentence a line")
    parser.add_argument("--count", type=int, default=70_000)
    parser.add_argument("--vocabulary", type=int, default=20_000, help="how many of the most frequent words to cover")
    parser.add_argument("--kind", choices=["all", "everyday"], default="all", help="cover the vocabulary, or talk plainly")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="files of sentences that must not appear")
    parser.add_argument("--seed", type=int, default=1)


def main(args: argparse.Namespace) -> None:
    held_out = [line for path in args.held_out for line in path.read_text(encoding="utf-8").splitlines()]
    lines = make_sentences(args.count, args.vocabulary, args.seed, held_out, args.kind)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = sum(len(line.split()) for line in lines)
    print(f"{len(lines)} sentences, {words} words, {len({w for s in lines for w in s.lower().split()})} different")
