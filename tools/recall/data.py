"""Texts with facts hidden in them, and questions about those facts.

A document is filler with statements in it, then questions, each with its answer. Everything is drawn from a
`random.Random`, so a seed gives the same documents again.

Families (a document may mix them):

    single      one needle in filler
    multikey    many needles with different keys, one asked
    multivalue  one key with two to six values in separate places, all asked, in any order
    passkey     "The pass key is 12345. Remember it."
    dictionary  pairs in JSON or lines
    multiquery  two or three keys in one question
    trace       A = 12. B = A. C = B. What is the value of C?
    copy        a passage quoted under a name

The level says how wide the choice is. Level 0: single, multikey, multivalue and passkey; six wordings, each
asked for by questions that end in its own words. Level 1: more wordings, keys and values, and questions that
go with any wording. Level 2: everything.

The answer to multivalue says the statement again for each value: `The code of amber is 12. The code of amber
is 34`. Each value may be any that was not said yet, and so there are several right next tokens.
"""
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"
ANOTHER, AGAIN = "another", "again"   # values of multivalue after the first, and what stands before them
FREE = "free"       # single and multikey where the question does not end in the statement's words
FAMILIES = ["single", "multikey", "multivalue", "passkey", "dictionary", "multiquery", "trace", "copy"]

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


WORD = r"(?<![A-Za-z'])[a-z]{4,9}(?![A-Za-z'])"


def word_list(texts):
    """Lower-case words of four to nine letters, those that occur three times or more."""
    count = {}
    for paragraphs in texts:
        for p in paragraphs:
            for w in re.findall(WORD, p):
                count[w] = count.get(w, 0) + 1
    return sorted(w for w, n in count.items() if n >= 3)


DIGITS = 3          # of a number that are a token at most
NUMBERS = [f"{n:0{width}}" for width in range(2, DIGITS + 1) for n in range(10 ** width)]


def train_tokenizer(texts, vocabulary, seed):
    """Byte-level BPE, and a token for every number of two or three digits.

    Numbers are cut from the left into threes, so the first token of a value tells it from nearly all others.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(seed)
    world = World(texts)
    lines = [p for paragraphs in texts for p in rng.sample(paragraphs, min(4000, len(paragraphs)))]
    lines += ["".join(t for t, *_ in Document(world, rng, 1200, len, 2).pieces) for _ in range(800)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=vocabulary - len(NUMBERS), special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)])
    return with_numbers(tokenizer)


def with_numbers(tokenizer):
    """The tokenizer, which spelt numbers digit by digit, with tokens for NUMBERS behind its own."""
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"]["pretokenizers"][0] = {
        "type": "Split", "pattern": {"Regex": f"[0-9]{{1,{DIGITS}}}"}, "behavior": "Isolated", "invert": False}
    first = len(content["model"]["vocab"])
    content["model"]["vocab"].update((number, first + i) for i, number in enumerate(NUMBERS))
    content["model"]["ignore_merges"] = True        # whole numbers come from no merges
    return Tokenizer.from_str(json.dumps(content))

# ---- keys and values ------------------------------------------------------------------------

SYLLABLES = "ba be bo da den dor el en fa fen gar go hal im jo ka kel lan lo mar mi na nor o pel qua ra rin sa sol ta tor u van vel wi xan ya zor".split()
NOUNS = ["number", "special number", "special magic number", "magic number", "secret code", "code", "access code",
         "password", "special magic word", "secret word", "token", "lucky number", "label", "value", "special magic uuid"]
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HELD_OUT_NOUNS = ["locker code", "tag", "magic value", "docket"]
KEYS = [["word", "pair"], ["word", "word", "pair", "pair", "pair", "name", "code", "number"],
        ["word", "word", "pair", "pair", "pair", "name", "code", "number", "uuid"]]
VALUES = [["number", "number", "number", "word"], ["number", "number", "number", "number", "word", "name", "code", "hex"],
          ["number", "number", "number", "number", "word", "name", "code", "hex", "uuid", "pair"]]


def digits(rng, low, high):
    n = rng.randint(low, high)
    return str(rng.randint(10 ** (n - 1), 10 ** n - 1))


def hexes(rng, n):
    return "".join(rng.choice("0123456789abcdef") for _ in range(n))


class World:
    """Words and filler. Every eighth word is held out: those are used only with held_out=True."""

    def __init__(self, texts, held_out=False):
        self.held_out, self.texts = held_out, texts
        self.words = [w for i, w in enumerate(word_list(texts)) if (i % 8 == 0) == held_out]
        self.usable = frozenset(self.words)

    def thing(self, rng, kind):
        """A key or a value of this kind."""
        if kind == "word":
            return rng.choice(self.words)
        if kind == "pair":
            return rng.choice(self.words) + rng.choice("-- ") + rng.choice(self.words)
        if kind == "name":
            made = lambda: "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()
            return made() + (" " + made() if rng.random() < 0.5 else "")
        if kind == "number":
            return digits(rng, 3, 7)
        if kind == "code":
            return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3))) + "-" + digits(rng, 2, 4)
        if kind == "capitals":
            return "".join(rng.choice(CAPITALS) for _ in range(rng.randint(3, 5)))
        if kind == "hex":
            return hexes(rng, rng.choice([6, 8, 8, 12]))
        return "-".join(hexes(rng, n) for n in (8, 4, 4, 4, 12))

# ---- wordings -------------------------------------------------------------------------------
# {a}: what kind of thing the value is, {k}: key, {v}: value.
# Each form: a statement and questions that end in its own words.

FORMS = [
    ("The {a} for {k} is {v}.", ["What is the {a} for {k}? The {a} for {k} is", "The {a} for {k} is"]),
    ("One of the {a}s for {k} is: {v}.", ["What is the {a} for {k}? One of the {a}s for {k} is:", "One of the {a}s for {k} is:"]),
    ("{k}: {v}", ["{k}:", "Value of {k}:"]),
    ("The {a} of {k} is {v}.", ["What is the {a} of {k}? The {a} of {k} is", "Tell me the {a} of {k}. The {a} of {k} is"]),
    ("{k} = {v}", ["{k} =", "Look up {k} ="]),
    ('"{k}": "{v}",', ['"{k}": "', 'What is stored under "{k}"? "{k}": "']),
    # from level 1
    ("{k} -> {v}", ["{k} ->", "What does {k} lead to? {k} ->"]),
    ("{k} has the {a} {v}.", ["Which {a} does {k} have? {k} has the {a}", "{k} has the {a}"]),
    ("Remember that the {a} for {k} is {v}.", ["What is the {a} for {k}? The {a} for {k} is", "Do you remember the {a} for {k}? Yes, it is"]),
    ("The {a} belonging to {k} is {v}.", ["Which {a} belongs to {k}? The {a} belonging to {k} is"]),
    # level 2
    ("For {k}, the {a} is {v}.", ["For {k}, the {a} is"]),
    ("Note: {k} is listed under {v}.", ["What is {k} listed under? {k} is listed under"]),
    ("They gave {k} the {a} {v}.", ["What did they give {k}? They gave {k} the {a}"]),
    ("The {a} assigned to {k} was {v}.", ["Which {a} was assigned to {k}? It was", "The {a} assigned to {k} was"]),
    ("{k}'s {a} is {v}.", ["What is {k}'s {a}? {k}'s {a} is"]),
    ("The box called {k} holds {v}.", ["What does the box called {k} hold? It holds"]),
    ("Let {k} be {v}.", ["Let {k} be"]),
    ("Everyone knows that {k} stands for {v}.", ["What does {k} stand for? {k} stands for"]),
]
LEVEL_FORMS = [6, 10, 18]
HELD_OUT_STATEMENTS = ["I was told that the {a} for {k} would be {v}.", "The {a} connected with {k} is {v}.",
                       "Keep in mind: the {a} for {k} is {v}.", "The {a} known for {k} is {v}."]
QUESTIONS = [  # for any statement
    "What is the {a} for {k}? Answer:", "Question: what is the {a} for {k}?\nAnswer:", "What is the {a} of {k}?\nAnswer:",
    "What is the {a} for {k} in the text above? The {a} for {k} in the text above is",
    "What is the {a} for {k}? The {a} for {k} is", "What is the {a} for {k}? It is", "Recall {k}. It is", "Q: {k}?\nA:",
    "Please give the {a} of {k}.\nAnswer:", "I need the {a} of {k}. You said", "Which {a} belongs to {k}? It is",
    "What is the {a} for {k} mentioned in the provided text? The {a} for {k} mentioned in the provided text is",
    "Tell me the {a} for {k}:", "Look up {k}:",
]
HELD_OUT_QUESTIONS = ["Could you say what the {a} for {k} is? Answer:", "What {a} does {k} have? It is",
                      "Now answer: the {a} for {k} is", "Question: which {a} was given for {k}?\nAnswer:"]
PASSKEYS = [
    ("The pass key is {v}. Remember it. {v} is the pass key.", "What is the pass key? The pass key is"),
    ("The pass key is {v}. Remember it.", "What is the pass key? The pass key is"),
    ("The vault opens with {v}.", "What does the vault open with? The vault opens with"),
    ("The hidden number is {v}. Memorise it.", "What is the hidden number? The hidden number is"),
    # from level 1
    ("The pass key is {v}. Remember it.", "What is the pass key? Answer:"),
    ("The secret pass code is {v}. Keep it.", "What is the secret pass code? Answer:"),
    ("There is an important number hidden here: the pass key is {v}.", "What is the pass key? Answer:"),
    ("Remember the pass key {v}.", "Which pass key did you remember? The pass key is"),
]
HELD_OUT_PASSKEYS = [
    ("The pass key you need is {v}. Remember it.", "Now, what is the pass key? The pass key you need is"),
    ("Here is the pass key: {v}. Store it well.", "What was the pass key? Here is the pass key:"),
]
VALUES_OF_A_KEY = [2, 3, 4, 4, 5, 6]    # of multivalue; the last ones, with most to be left out, are the hardest
MARK = "List"    # the word with which lists are asked for, but for most of ALL
EVERY = ["List every {a} of {k}. ", "List every {a} for {k}. ", "List all of {k}: ", "List: "]   # before a question of multivalue
ALL = ["What are all the {a}s for {k}? The {a}s for {k} are",     # questions of multivalue that end in words of their own
       "What are all the {a}s for {k} mentioned in the provided text? The {a}s for {k} mentioned in the provided text are",
       *["All {a}s for {k}:"] * 3, "List every {a} for {k}.\nAnswer:", "Name all the {a}s for {k}:",
       "What are all the {a}s of {k}?\nAnswer:", "Tell me every {a} for {k}. They are"]
SEVERAL = ["What are the {a}s for {list}? Answer:", "Look up {list}:", "Q: {list}?\nA:"]
NOISE = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
         "It was late and the rain fell on the roof.", "Nothing happened for a while.", "One day follows another.",
         "The road went on and on through the hills.", "Some said yes and some said no."]
INTROS = ["There is important information hidden in the text. Find it and remember it.",
          "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the numbers afterwards.",
          "Read the text and answer the questions at the end.", "Below is a long text with a few notes in it."]

# ---- documents ------------------------------------------------------------------------------


class Document:
    """pieces: (text, family or None, choices or None); the answers are those with a family.

    With common, words of keys are drawn as often as the filler's source has them: such a key is likely to occur in
    the filler too, where it is no key. At most as many questions are asked as `most` says. choices are the texts of
    which any would have been right; ANOTHER is a value after the first of one answer, AGAIN what stands between them.
    """

    def __init__(self, world, rng, length, measure, level, families=None, share=None, tail=None, filler=None, common=False, most=None):
        self.world, self.rng, self.measure, self.level = world, rng, measure, level
        self.common = common
        self.pieces, self.length, self.used = [], 0, set()
        if families is None:
            names = ["multikey"] * 4 + ["multivalue"] * 3 + ["single", "passkey"]
            if level > 1:
                names += ["multiquery", "trace", "trace", "trace", "copy", "copy", "copy", "dictionary"]
            families = sorted(set(rng.choices(names, k=1 if rng.random() < 0.5 else 2)))
        self.families = families
        one = rng.random() < 0.6            # one kind and one wording throughout: the harder case
        self.key_kind = rng.choice(KEYS[level]) if one else None
        self.value_kind = rng.choice(VALUES[level]) if one or rng.random() < 0.5 else None
        self.noun = rng.choice(self.nouns()) if one or rng.random() < 0.5 else None
        self.form = rng.choice(self.forms()) if one else None
        self.variable_kind = rng.choice(["code", "capitals"])
        self.joint = rng.choice([" ", "\n"])
        self.filler_kind = filler or rng.choice(["text"] * 5 + ["noise", "words"])
        self.source, self.paragraph = rng.choice(world.texts), iter(())
        tail = tail if tail is not None else int(length * rng.uniform(0.3, 0.6))
        share = share if share is not None else rng.choice([0.1, 0.4, 1.0, 1.0, 1.0])
        body = length - tail
        statements, self.asks = self.plan(int(body * share))
        free = body - sum(self.measure(s) for _, s in statements)
        if rng.random() < 0.15:
            self.add(rng.choice(INTROS))
        filled = 0
        for position, text in sorted(statements, key=lambda s: s[0]):
            while filled < position * free - 8:
                filled += self.add(self.filler(position * free - filled))
            self.add(text)
        while filled < free - 8:
            filled += self.add(self.filler(free - filled))
        self.body = len(self.pieces)
        self.add(rng.choice(["\n", "\n", "\n\n"]))
        asks = rng.sample(self.asks, len(self.asks))[:most] if tail else []
        while self.length < length and asks:
            family, questions, answer = asks.pop()
            self.add(rng.choice(questions))
            if family == "multivalue":
                values, again = answer
                for i, value in enumerate(values):
                    self.add(value, ANOTHER if i else family, values[i:])
                    self.add(*((again, AGAIN) if i + 1 < len(values) else ("\n",)))
            else:
                self.add(answer + "\n", family)

    def nouns(self):
        return HELD_OUT_NOUNS + NOUNS[:4] if self.world.held_out else NOUNS

    def forms(self):
        forms = FORMS[:LEVEL_FORMS[self.level]]
        return forms + [(s, []) for s in HELD_OUT_STATEMENTS] * 3 if self.world.held_out and self.level else forms

    def add(self, text, family=None, choices=None):
        self.pieces.append((text, family, choices))
        n = self.measure(text)
        self.length += n
        return n

    def filler(self, room):
        kind = self.filler_kind
        if kind == "noise":
            return " " + (NOISE[0] if self.rng.random() < 0.7 else self.rng.choice(NOISE))
        if kind == "words":
            return " " + " ".join(self.rng.choice(self.world.words) for _ in range(max(2, min(12, int(room / 2))))) + "."
        sentence = next(self.paragraph, None)
        if sentence is None:
            start = self.rng.randrange(len(self.source))
            self.paragraph = iter([s for p in self.source[start:start + 8] for s in re.split(r"(?<=[.!?]) ", p)])
            sentence = next(self.paragraph)
        return " " + sentence[:int(4 * room) + 8].rstrip()

    def new(self, kind):
        while True:
            made = self.world.thing(self.rng, kind)
            if made not in self.used:
                self.used.add(made)
                return made

    def key(self):
        kind = self.key_kind or self.rng.choice(KEYS[self.level])
        if not self.common or kind not in ("word", "pair"):
            return self.new(kind)
        for _ in range(100):                # filler without words that may be used gives up
            words = [w for w in re.findall(WORD, self.rng.choice(self.source)) if w in self.world.usable]
            key = self.rng.choice("-- ").join(self.rng.choice(words) for _ in range(2 if kind == "pair" else 1)) if words else ""
            if key and key not in self.used:
                self.used.add(key)
                return key
        return self.new(kind)

    def value(self):
        return self.new(self.value_kind or self.rng.choice(VALUES[self.level]))

    def questions(self, family, own, noun, key):
        """FREE or the family, and questions of which any may be asked."""
        general = QUESTIONS
        if self.world.held_out and self.level:
            general = HELD_OUT_QUESTIONS + QUESTIONS[:4]
        known = self.level and (not own or self.rng.random() < 0.5)
        return FREE if known else family, [q.format(a=noun, k=key) for q in (general if known else own)]

    def plan(self, room):
        """(position, statement) pairs that fill about this many tokens, and what can be asked."""
        rng, statements, asks = self.rng, [], []
        def state(*texts):
            nonlocal room
            for position, text in zip(sorted(rng.random() for _ in texts), texts):
                # what ends without a full stop needs a line of its own
                statements.append((position, (self.joint if text[-1] in ".}" else "\n") + text))
                room -= self.measure(text) + 1
        turn = 0
        while turn < len(self.families) or room > 0:
            family = self.families[turn] if turn < len(self.families) else rng.choice(self.families)
            turn += 1
            if family in ("single", "passkey") and turn > len(self.families):
                if set(self.families) <= {"single", "passkey"}:
                    break
                continue
            noun = self.noun or rng.choice(self.nouns())
            statement, own = self.form or rng.choice(self.forms())
            if family in ("single", "multikey"):
                key, value = self.key(), self.value()
                state(statement.format(a=noun, k=key, v=value))
                asks.append((*self.questions(family, own, noun, key), self.answer(statement, own, value)))
                if asks[-1][2][0] != " ":
                    asks[-1] = (family, [q.format(a=noun, k=key) for q in own], asks[-1][2])
            elif family == "multivalue":
                key, n = self.key(), rng.choice(VALUES_OF_A_KEY)
                values = [self.value() for _ in range(n)]
                state(*(statement.format(a=noun, k=key, v=v) for v in values))
                before, after = (part.format(a=noun, k=key) for part in statement.split("{v}"))
                again = after + (" " if after else ", ") + before.rstrip()
                values = [" " * (before[-1] == " ") + v for v in rng.sample(values, n)]
                questions = [q + before.rstrip() for q in EVERY]
                if before[-1] == " " and rng.random() < 0.65:
                    questions = ALL
                asks.append((family, [q.format(a=noun, k=key) for q in questions], (values, again)))
            elif family == "passkey":
                form, question = rng.choice(HELD_OUT_PASSKEYS if self.world.held_out and rng.random() < 0.5 else PASSKEYS[:8 if self.level else 4])
                value = digits(rng, 4, 7)
                state(form.format(v=value))
                asks.append((family, [question], " " + value))
            elif family == "dictionary":
                pairs = [(self.key(), self.value()) for _ in range(rng.randint(3, 10))]
                if rng.random() < 0.5:
                    state("{" + ", ".join(f'"{k}": "{v}"' for k, v in pairs) + "}")
                    asks += [(family, [f'"{k}":', f'Value of "{k}":', f'What is stored under "{k}"? "{k}":'], f' "{v}"') for k, v in pairs]
                else:
                    sign = rng.choice([":", " =", " |"])
                    state("".join(f"\n{k}{sign} {v}" for k, v in pairs) + "\n")
                    asks += [(family, [f"{k}{sign}", f"Value of {k}{sign}"], f" {v}") for k, v in pairs]
            elif family == "multiquery":
                pairs = [(self.key(), self.value()) for _ in range(rng.randint(2, 3))]
                for k, v in pairs:
                    state(statement.format(a=noun, k=k, v=v))
                listed = ", ".join(k for k, _ in pairs[:-1]) + " and " + pairs[-1][0]
                asks.append((family, [q.format(a=noun, list=listed) for q in SEVERAL], " " + "; ".join(f"{k}: {v}" for k, v in pairs)))
            elif family == "trace":
                names = [self.new(self.variable_kind).replace("-", "") for _ in range(rng.randint(2, 4))]
                value = digits(rng, 3, 6)
                head = rng.choice(["", "VAR ", "Let "])
                state(*(f"{head}{name} = {names[i - 1] if i else value}." for i, name in enumerate(names)))
                for i in range(1, len(names)):
                    chain = " = ".join(names[:i][::-1] + [value])
                    asks.append((family, *rng.choice([([f"Trace {names[i]} ="], f" {chain}"),
                                                      ([f"Trace {names[i]}:"], f" {names[i]} = {chain}")])))
            elif family == "copy":
                key = self.key()
                text = self.source if rng.random() < 0.5 else rng.choice(self.world.texts)
                start = rng.randrange(len(text))
                words = " ".join(text[start:start + 4]).replace('"', "").split()
                n = rng.randint(8, 40)
                start = rng.randrange(max(1, len(words) - n))
                passage = " ".join(words[start:start + n])
                state(f'Passage {key}: "{passage}"')
                asks.append((family, [f"Repeat passage {key}:", f"Quote {key}:"], f' "{passage}"'))
        return statements, asks

    def answer(self, statement, own, value):
        return f'{value}"' if statement.startswith('"') else " " + value

# ---- rows of tokens -------------------------------------------------------------------------

ONE_ANSWER = 160    # tokens of a question and all values of a list, but for the longest


class Rows:
    """Documents as token rows."""

    def __init__(self, tokenizer, texts, seed, held_out=False):
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.world = World(texts, held_out)
        self.cache = {}

    def encode(self, text):
        ids = self.cache.get(text)
        if ids is None:
            if len(self.cache) > 20000:
                self.cache.clear()
            ids = self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def alternatives(self, piece, choices):
        """The tokens with which any of the choices goes on, at each token of the piece."""
        choices = [self.encode(c) for c in choices]
        return [sorted({c[i] for c in choices if len(c) > i and c[:i] == piece[:i]}) for i in range(len(piece))]

    def row(self, length, level, limit=0, alone=None, **plan):
        """length + 1 tokens, positions, and (family, first, end, choices) of the answers.

        With alone, documents have lengths between these two and one question each.

        choices: for each token of the answer, those that would have been right, or None where there is but one.

        With a limit, the positions jump ahead at three places, so that short rows show long distances.
        """
        rng = self.rng
        ids, spans, borders = [0], [], [1]
        while len(ids) <= length:
            room = length + 1 - len(ids)
            if alone:
                room = min(room, rng.randint(*alone))
                plan.update(tail=min(room // 2, ONE_ANSWER), most=1)
            for text, family, choices in Document(self.world, rng, room, lambda t: len(self.encode(t)), level, **plan).pieces:
                piece = self.encode(text)
                if family and len(ids) + len(piece) <= length + 1:
                    spans.append((family, len(ids), len(ids) + len(piece), choices and self.alternatives(piece, choices)))
                elif not family and len(ids) < length:
                    borders.append(len(ids))
                ids += piece
        steps = np.ones(length, np.int64)
        steps[0] = 0
        if limit > length:
            cuts = sorted(rng.randint(0, limit - length) for _ in range(3))
            for skip, border in zip((cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1]), rng.choices(borders, k=3)):
                steps[border] += skip
        return np.array(ids[:length + 1], np.int64), np.cumsum(steps), spans
