"""Texts with facts hidden in them, and questions about those facts.

A document is a list of pieces: filler, statements, questions, answers. A question always comes after
everything it asks about, and its answer follows it at once and ends with a line break. Everything is
drawn from a `random.Random`, so a seed gives the same documents again.

Families (a document may mix them):

    single      one needle in filler
    multikey    many needles with different keys
    multivalue  one key with two to four values, stated together, numbered, or in separate places
    multiquery  two to four keys asked in one question
    passkey     "The pass key is 12345. Remember it."
    dictionary  blocks of key-value pairs: JSON, lines, tables
    trace       A = 12. B = A. C = B. Trace C: C = B = A = 12
    copy        a passage quoted under a name, asked for word by word
    repeat      a run of random tokens that occurs again (training only)
"""
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"
FAMILIES = ["single", "multikey", "multivalue", "multiquery", "passkey", "dictionary", "trace", "copy", "repeat"]
TEXT, ANSWER = 0, 1

# ---- texts ----------------------------------------------------------------------------------

SOURCES = ["tinystories/train_0.txt", "gutenberg-war-and-peace/war_and_peace.txt", "tinyshakespeare/input.txt"]


def read_texts(folder):
    """The three sources as lists of paragraphs, in ASCII, with single spaces."""
    texts = []
    for name in SOURCES:
        raw = (Path(folder) / name).read_text(encoding="utf-8", errors="ignore")
        if "*** START OF" in raw:
            raw = raw.split("*** START OF", 1)[1].split("*** END OF", 1)[0].split("\n", 1)[1]
        for fancy, plain in (("“", '"'), ("”", '"'), ("’", "'"), ("‘", "'"), ("<|endoftext|>", "\n\n")):
            raw = raw.replace(fancy, plain)
        raw = raw.encode("ascii", "ignore").decode()
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", raw)]
        texts.append([p for p in paragraphs if len(p) > 20])
    return texts


def word_list(texts):
    """Lower-case words of four to nine letters, those that occur three times or more."""
    count = {}
    for paragraphs in texts:
        for p in paragraphs:
            for w in re.findall(r"(?<![A-Za-z'])[a-z]{4,9}(?![A-Za-z'])", p):
                count[w] = count.get(w, 0) + 1
    return sorted(w for w, n in count.items() if n >= 3)


def train_tokenizer(texts, vocabulary, seed):
    """Byte-level BPE; digits are tokens of their own, so numbers are spelt alike everywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(seed)
    world = World(texts, rng)
    lines = [p for paragraphs in texts for p in rng.sample(paragraphs, min(4000, len(paragraphs)))]
    lines += ["".join(t for t, *_ in world.document(rng, 1200, len)) for _ in range(800)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)])
    return tokenizer

# ---- keys and values ------------------------------------------------------------------------

SYLLABLES = "ba be bo da den dor el en fa fen gar go hal im jo ka kel lan lo mar mi na nor o pel qua ra rin sa sol ta tor u van vel wi xan ya zor".split()
NOUNS = ["number", "special number", "magic number", "secret code", "access code", "code", "lucky number", "password",
         "code word", "secret word", "reference", "badge", "token", "label", "serial number", "ticket", "mark",
         "record", "entry", "value", "secret", "special value", "registration", "combination", "signal"]
HELD_OUT_NOUNS = ["locker code", "tag", "magic value", "docket"]


def digits(rng, low, high):
    n = rng.randint(low, high)
    return str(rng.randint(10 ** (n - 1), 10 ** n - 1))


def hexes(rng, n):
    return "".join(rng.choice("0123456789abcdef") for _ in range(n))


class World:
    """Words, filler and the drawing of keys. Held-out words are used only with held_out=True."""

    def __init__(self, texts, rng, held_out=False):
        words = word_list(texts)
        self.held_out = held_out
        self.words = [w for i, w in enumerate(words) if (i % 8 == 0) == held_out]
        self.texts = texts

    def word(self, rng):
        return rng.choice(self.words)

    def thing(self, rng, kind):
        """A key or a value of this kind."""
        if kind == "word":
            return self.word(rng)
        if kind == "pair":
            return self.word(rng) + rng.choice("- ") + self.word(rng)
        if kind == "name":
            made = lambda: "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()
            return made() + (" " + made() if rng.random() < 0.5 else "")
        if kind == "number":
            return digits(rng, 3, 7)
        if kind == "code":
            return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3))) + "-" + digits(rng, 2, 4)
        if kind == "hex":
            return hexes(rng, rng.choice([6, 8, 8, 12]))
        if kind == "shortid":
            return "-".join((hexes(rng, 4), hexes(rng, 4), hexes(rng, 4)))
        return "-".join(hexes(rng, n) for n in (8, 4, 4, 4, 12))

    KEYS = ["word"] * 5 + ["pair"] * 5 + ["name"] * 4 + ["number"] * 2 + ["code"] * 3 + ["hex"] * 2 + ["shortid", "uuid"]
    VALUES = ["number"] * 8 + ["word"] * 3 + ["pair"] * 2 + ["name"] * 2 + ["code"] * 3 + ["hex"] * 3 + ["shortid", "uuid"]

    SHORT = ["word", "word", "name", "number", "code"]

    def document(self, rng, length, measure, families=None, density=None, questions=None, tail=None, short=False):
        return Document(self, rng, length, measure, families, density, questions, tail, short).pieces

# ---- wordings -------------------------------------------------------------------------------
# {a}: what kind of thing the value is, {k}: key, {v}: value.

STATEMENTS = [
    "The {a} for {k} is {v}.", "The {a} of {k} is {v}.", "The {a} for {k} is: {v}.", "One of the {a}s for {k} is: {v}.",
    "{k} has the {a} {v}.", "Remember that the {a} for {k} is {v}.", "{k} -> {v}.", "Note: the {a} belonging to {k} is {v}.",
    "For {k}, the {a} is {v}.", "Please remember: {k} = {v}.", "In the register, {k} is listed under {v}.",
    "{k}: {v}.", "They gave {k} the {a} {v}.", "It is written that {k} got {v}.", "The {a} that goes with {k} is {v}.",
    "We found {k} next to {v}.", "Do not forget, {k} means {v}.", "Everyone knows that {k} stands for {v}.",
    "The {a} assigned to {k} was {v}.", "{k}'s {a} is {v}.", "Whoever asks about {k} must hear {v}.",
    "If you look for {k}, take {v}.", "The clerk wrote {v} beside {k}, so {k} is {v}.", "({k}, {v})",
    "The box called {k} holds {v}.", "Let {k} be {v}.", "Hidden {a}: {k} is {v}.", "The entry {k} reads {v}.",
]
HELD_OUT_STATEMENTS = [
    "I was told that the {a} for {k} would be {v}.", "The {a} connected with {k} is {v}.", "Keep in mind that {k} has {v}.",
    "Under the name {k} you will find {v}.", "The {a} known for {k} is {v}.",
]
QUESTIONS = [
    "What is the {a} for {k}? The {a} for {k} is", "What is the {a} of {k}? The {a} of {k} is", "What is the {a} for {k}? Answer:",
    "Question: what is the {a} of {k}?\nAnswer:", "Q: {k}?\nA:", "{k} ->", "{k}:", "Which {a} belongs to {k}? It is",
    "Tell me the {a} for {k}:", "Do you remember the {a} for {k}? Yes, it is", "Please give the {a} of {k}.\nAnswer:",
    "What goes with {k}? Answer:", "Recall {k}. It is", "The {a} for {k} is", "Look up {k}:", "{k} =",
    "What was said about {k}? It was", "I need the {a} of {k}. You said", "Complete: the {a} for {k} is", "Find {k}. Found:",
    "What is the {a} for {k} in the text above? The {a} for {k} in the text above is", "Which value stands with {k}? Value:",
    "What do we know of {k}?\nAnswer:", "Name the {a} for {k}.\nAnswer:",
]
HELD_OUT_QUESTIONS = [
    "Could you say what the {a} for {k} is? Answer:", "What {a} does {k} have? It is", "I forgot the {a} of {k}. It is",
    "Now answer: the {a} of {k} is", "Question: which {a} was given for {k}?\nAnswer:",
]
PASSKEYS = [
    ("The pass key is {v}. Remember it. {v} is the pass key.", "What is the pass key? The pass key is"),
    ("The pass key is {v}. Remember it.", "What is the pass key? The pass key is"),
    ("The secret pass code is {v}. Keep it.", "What is the secret pass code? Answer:"),
    ("There is an important number hidden here: the pass key is {v}.", "What is the pass key? Answer:"),
    ("Remember the pass key {v}.", "Which pass key did you remember? The pass key is"),
    ("The pass code is {v}. Do not forget it.", "The pass code is"),
    ("The key to the door is {v}. You will need it later.", "What is the key to the door? The key to the door is"),
    ("Attention: pass key {v}. Pass key {v}.", "Question: what is the pass key?\nAnswer:"),
    ("The vault opens with {v}.", "What does the vault open with? The vault opens with"),
    ("The hidden number is {v}. Memorise it.", "What is the hidden number? The hidden number is"),
]
HELD_OUT_PASSKEYS = [
    ("The pass key you need is {v}. Remember it.", "Now, what is the pass key? The pass key you need is"),
    ("Here is the pass key: {v}. Store it well.", "What was the pass key? Here is the pass key:"),
]
SEVERAL = ["What are the {a}s for {list}? Answer:", "Give the {a}s for {list}.\nAnswer:", "Q: {list}?\nA:",
           "Which values belong to {list}? They are", "Recall {list}:", "Look up {list}:"]
ALL_VALUES = ["What are all the {a}s for {k}? The {a}s for {k} are", "List every {a} for {k}.\nAnswer:", "All {a}s for {k}:",
              "Which {a}s does {k} have? Answer:", "Every {a} of {k}:"]
TOGETHER = ["The {a}s for {k} are {list}.", "{k} has the {a}s {list}.", "All {a}s for {k}: {list}.", "To {k} belong {list}."]
ORDINALS = ["first", "second", "third", "fourth"]
NOISE = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
         "It was late and the rain fell on the roof.", "Nothing happened for a while.", "One day follows another.",
         "The road went on and on through the hills.", "Some said yes and some said no."]
INTROS = ["There is important information hidden in the text. Find it and remember it.",
          "Read the text and answer the questions at the end.", "Some facts are hidden within the following text. Make sure to memorize them.",
          "I will ask you about the details afterwards.", "Below is a long text with a few notes in it."]

# ---- facts ----------------------------------------------------------------------------------


class Fact:
    """Statements to place in this order, and (family, question, answer) triples to ask later."""

    def __init__(self, statements, asks, pair=None):
        self.statements, self.asks, self.pair, self.asked = statements, asks, pair, 0


class Document:
    """Plans where facts and questions stand, then writes the pieces: (text, TEXT or ANSWER, family)."""

    def __init__(self, world, rng, length, measure, families, density, questions, tail, short=False):
        self.world, self.rng, self.measure = world, rng, measure
        if families is None:
            weights = dict(single=2, multikey=5, multivalue=2.5, multiquery=2, passkey=1, dictionary=2.5, trace=2, copy=1)
            names = list(weights)
            families = set(rng.choices(names, [weights[n] for n in names], k=1 if rng.random() < 0.5 else rng.randint(2, 4)))
        self.families = set(families)
        self.used, self.pieces, self.length = set(), [], 0
        keys, values = (world.SHORT, world.SHORT) if short else (world.KEYS, world.VALUES)
        self.key_kind = rng.choice(keys) if short or rng.random() < 0.6 else None
        self.value_kind = rng.choice(values) if short or rng.random() < 0.6 else None
        self.noun = rng.choice(self.nouns()) if rng.random() < 0.6 else None
        self.statement = rng.choice(self.wordings(STATEMENTS, HELD_OUT_STATEMENTS)) if rng.random() < 0.5 else None
        self.joint = rng.choice([" ", "\n", "\n"])
        self.filler_kind = rng.choice(["text"] * 7 + ["noise", "words", "mixed"])
        self.source = rng.choice(world.texts)
        self.paragraph = iter(())
        density = density if density is not None else rng.choice([0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 1.0])
        tail = tail if tail is not None else max(60, int(length * rng.uniform(0.15, 0.4)))
        body = length - tail
        facts = self.plan(int(body * density))
        spots = []                          # (position, fact, statement number); number None: ask something
        for fact in facts:
            for number, position in enumerate(sorted(rng.random() for _ in fact.statements)):
                spots.append((position, fact, number))
        if questions is None:
            questions = rng.choice([0, 0, body // 400, body // 150])
        spots += [(rng.random(), None, None) for _ in range(questions)]
        spots.sort(key=lambda spot: spot[0])
        weight = sum(self.measure(f.statements[n]) for _, f, n in spots if f) + 30 * questions
        free = max(0, body - weight)        # left for filler, shared out by position
        if rng.random() < 0.3:
            self.add(self.joint + rng.choice(INTROS))
        done, filled = [], 0
        for position, fact, number in spots:
            while filled < position * free - 12:
                filled += self.add(self.filler(position * free - filled))
            if fact is None:
                self.ask(done)
                continue
            self.add(fact.statements[number])
            if number == len(fact.statements) - 1:
                done.append(fact)
        while filled < free - 12:
            filled += self.add(self.filler(free - filled))
        self.add("\n")
        self.facts = done
        while tail and self.length < length and any(f.asked < 2 for f in done):
            self.ask(done)

    def nouns(self):
        return HELD_OUT_NOUNS + NOUNS[:4] if self.world.held_out else NOUNS

    def wordings(self, known, held_out):
        """Held-out documents use both: half known wordings, half new ones."""
        return held_out if self.world.held_out and self.rng.random() < 0.5 else known

    def add(self, text, kind=TEXT, family=None):
        self.pieces.append((text, kind, family))
        n = self.measure(text)
        self.length += n
        return n

    def filler(self, room):
        kind = self.filler_kind if self.filler_kind != "mixed" else self.rng.choice(["text", "noise", "words"])
        if kind == "noise":
            return " " + (NOISE[0] if self.rng.random() < 0.7 else self.rng.choice(NOISE))
        if kind == "words":
            return " " + " ".join(self.world.word(self.rng) for _ in range(max(2, min(12, int(room / 2))))) + "."
        sentence = next(self.paragraph, None)
        if sentence is None:
            if self.rng.random() < 0.1:
                self.source = self.rng.choice(self.world.texts)
            start = self.rng.randrange(len(self.source))
            self.paragraph = iter([s for p in self.source[start:start + 8] for s in re.split(r"(?<=[.!?]) ", p)])
            sentence = next(self.paragraph)
        return " " + sentence[:int(4 * room) + 8].rstrip()

    def new_key(self):
        while True:
            key = self.world.thing(self.rng, self.key_kind or self.rng.choice(self.world.KEYS))
            if key not in self.used:
                self.used.add(key)
                return key

    def value(self):
        return self.world.thing(self.rng, self.value_kind or self.rng.choice(self.world.VALUES))

    def plan(self, room):
        """Facts of the chosen families whose statements fill about this many tokens; at least one each."""
        facts, room_left = [], room
        names = sorted(self.families - {"multiquery"}) or ["multikey"]
        if self.families == {"single"}:
            return self.make("single")
        for name in names:
            made = self.make(name)
            facts += made
        if "multiquery" in self.families:
            for _ in range(4):
                facts += self.make("multikey")
        room_left -= sum(self.measure(s) for f in facts for s in f.statements)
        repeatable = [n for n in names if n not in ("single", "passkey")] or (["multikey"] if self.families != {"passkey"} else [])
        while room_left > 0 and repeatable:
            made = self.make(self.rng.choice(repeatable))
            facts += made
            room_left -= sum(self.measure(s) for f in made for s in f.statements)
        return facts

    def make(self, family):
        rng = self.rng
        noun = self.noun or rng.choice(self.nouns())
        if family in ("single", "multikey"):
            key, value = self.new_key(), self.value()
            wording = self.statement or rng.choice(self.wordings(STATEMENTS, HELD_OUT_STATEMENTS))
            asks = [(family, q.format(a=noun, k=key), f" {value}\n")
                    for q in rng.sample(self.wordings(QUESTIONS, HELD_OUT_QUESTIONS), 4)]
            return [Fact([self.joint + wording.format(a=noun, k=key, v=value)], asks, (noun, key, value))]
        if family == "multivalue":
            key, n = self.new_key(), rng.randint(2, 4)
            values = []
            while len(values) < n:
                value = self.value()
                if value not in values:
                    values.append(value)
            listed = ", ".join(values)
            form = rng.choice(["together", "numbered", "apart", "apart"])
            if form == "together":
                statements = [rng.choice(TOGETHER).format(a=noun, k=key, list=listed)]
            elif form == "numbered":
                statements = [f"The {o} {noun} for {key} is {v}." for o, v in zip(ORDINALS, values)]
            else:
                wording = rng.choice(STATEMENTS[:4])
                statements = [wording.format(a=noun, k=key, v=v) for v in values]
            asks = [(family, q.format(a=noun, k=key), f" {listed}\n") for q in rng.sample(ALL_VALUES, 2)]
            if form == "numbered":
                asks += [(family, f"What is the {o} {noun} for {key}? Answer:", f" {v}\n") for o, v in zip(ORDINALS, values)]
            return [Fact([self.joint + s for s in statements], asks)]
        if family == "passkey":
            statement, question = rng.choice(self.wordings(PASSKEYS, HELD_OUT_PASSKEYS))
            value = digits(rng, 4, 7) if rng.random() < 0.8 else self.value()
            return [Fact([self.joint + statement.format(v=value)], [(family, question, f" {value}\n")])]
        if family == "dictionary":
            pairs = [(self.new_key(), self.value()) for _ in range(rng.randint(3, 12))]
            form = rng.choice(["json", "lines", "equals", "table", "tuple"])
            if form == "json":
                block = json.dumps(dict(pairs))
                asks = [(family, rng.choice(['Value of "{k}":', 'What is stored under "{k}"? Answer:', '"{k}":']).format(k=k), f' "{v}"\n') for k, v in pairs]
            else:
                row = {"lines": "{}: {}", "equals": "{} = {}", "table": "| {} | {} |", "tuple": "- ( {}, {} )"}[form]
                block = "\n".join(row.format(k, v) for k, v in pairs)
                asks = [(family, rng.choice(["Value of {k}:", "Look up {k}:", "Key: {k}\nValue:", "What is stored under {k}? Answer:"]).format(k=k), f" {v}\n") for k, v in pairs]
            return [Fact(["\n" + block + "\n"], asks)]
        if family == "trace":
            names = [self.new_key() if rng.random() < 0.3 else self.variable() for _ in range(rng.randint(2, 5))]
            value = digits(rng, 3, 6)
            head = rng.choice(["", "", "VAR ", "Let "])
            statements, asks, chain = [], [], value
            for i, name in enumerate(names):
                statements.append(f"{head}{name} = {names[i - 1] if i else value}.")
                chain = f"{name} = {chain}"
                asks.append((family, rng.choice(["Trace {k}:", "What is the value of {k}? Step by step:", "Follow {k}:"]).format(k=name), f" {chain}\n"))
            return [Fact([self.joint + s for s in statements], asks[::-1])]
        if family == "copy":
            key = self.new_key()
            if rng.random() < 0.3:
                passage = " ".join(self.world.word(rng) for _ in range(rng.randint(6, 20)))
            else:
                words = rng.choice(rng.choice(self.world.texts)).replace('"', "").split()
                n = rng.randint(12, 40)
                start = rng.randrange(max(1, len(words) - n))
                passage = " ".join(words[start:start + n])
            statement = rng.choice(['Passage {k}: "{v}"', 'Under {k} stands: "{v}"', 'Note {k} says "{v}"']).format(k=key, v=passage)
            ask = rng.choice(['Repeat passage {k}:', 'What does {k} say? Answer:', 'Quote {k}:']).format(k=key)
            return [Fact([self.joint + statement], [(family, ask, f' "{passage}"\n')])]
        raise ValueError(family)

    def variable(self):
        while True:
            name = "".join(self.rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(self.rng.randint(1, 4)))
            name += digits(self.rng, 1, 2) if len(name) < 3 else ""
            if name not in self.used:
                self.used.add(name)
                return name

    def ask(self, done):
        """One question about a fact that is complete; those not asked yet come first."""
        if not done:
            return
        rng = self.rng
        pairs = [f for f in done if f.pair]
        if "multiquery" in self.families and len(pairs) > 1 and rng.random() < 0.6:
            chosen = rng.sample(pairs, min(len(pairs), rng.randint(2, 4)))
            noun = chosen[0].pair[0]
            keys = [f.pair[1] for f in chosen]
            question = rng.choice(SEVERAL).format(a=noun, list=", ".join(keys[:-1]) + " and " + keys[-1])
            answer = " " + "; ".join(f"{f.pair[1]}: {f.pair[2]}" for f in chosen) + "\n"
            self.put("multiquery", question, answer)
            return
        sample = rng.sample(done, min(3, len(done)))
        fact = min(sample, key=lambda f: f.asked / len(f.asks))
        fact.asked += 1
        self.put(*rng.choice(fact.asks))

    def put(self, family, question, answer):
        self.add("\n" + question)
        self.add(answer, ANSWER, family)

# ---- rows of tokens -------------------------------------------------------------------------


class Rows:
    """Documents as token rows with loss weights and the places of the answers."""

    def __init__(self, tokenizer, texts, seed, held_out=False):
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.get_vocab_size()
        self.world = World(texts, self.rng, held_out)
        self.cache = {}

    def encode(self, text):
        ids = self.cache.get(text)
        if ids is None:
            if len(self.cache) > 20000:
                self.cache.clear()
            ids = self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def row(self, length, limit=0, **plan):
        """length + 1 tokens, the weight of each as a target, positions, and (family, first, end) of answers.

        With a limit, the positions jump ahead at up to three places, so that short rows show long distances.
        """
        rng = self.rng
        ids, kinds, spans, borders = [0], [TEXT], [], []
        while len(ids) <= length:           # a document that has no more to ask is followed by another
            for text, kind, family in self.world.document(rng, length + 1 - len(ids), lambda t: len(self.encode(t)), **plan):
                piece = self.encode(text)
                if kind == ANSWER and len(ids) + len(piece) <= length + 1:
                    spans.append((family, len(ids), len(ids) + len(piece)))
                elif kind == TEXT:
                    borders.append(len(ids))
                ids += piece
                kinds += [kind] * len(piece)
            plan = dict(families=rng.choices(["multikey", "dictionary", "multivalue", "trace"], k=2))
        return self.finish(ids, kinds, spans, borders, length, limit)

    def finish(self, ids, kinds, spans, borders, length, limit):
        steps = np.ones(length, np.int64)
        steps[0] = 0
        if limit > length:
            room = self.rng.randint(0, limit - length)
            cuts = sorted(self.rng.randint(0, room) for _ in range(3))
            for skip, border in zip((cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1]),
                                    self.rng.choices([b for b in borders if b < length] or [1], k=3)):
                steps[border] += skip
        return (np.array(ids[:length + 1], np.int64), np.array(kinds[:length + 1], np.int64), np.cumsum(steps), spans)

    def repeats(self, length, limit=0):
        """Random tokens in runs that come back: what copying by context is learnt from."""
        rng, ids, kinds, spans, runs = self.rng, [0], [TEXT], [], []
        while len(ids) <= length:
            if runs and rng.random() < 0.6:
                run = rng.choice(runs)
                start = rng.randrange(len(run) // 2)
                run = run[start:start + rng.randint(4, 40)]
                if len(run) > 2:
                    spans.append(("repeat", len(ids) + 2, min(len(ids) + len(run), length + 1)))
                    ids += run
                    kinds += [TEXT] * 2 + [ANSWER] * (len(run) - 2)
            else:
                run = [rng.randrange(2, self.vocabulary) for _ in range(rng.randint(4, 40))]
                runs.append(run)
                ids += run
                kinds += [TEXT] * len(run)
        spans = [s for s in spans if s[1] < s[2]]
        return self.finish(ids, kinds, spans, [1], length, limit)
