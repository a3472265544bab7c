//! Keys and values: words, names, numbers and codes that occur once in a document.

use std::collections::HashSet;

use crate::random::Random;

/// What a key or a value looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Word,
    Pair,
    Name,
    Number,
    Code,
    Hex,
    Uuid,
}

impl Kind {
    pub(super) const NAMES: &[(&str, Kind)] = &[
        ("word", Kind::Word),
        ("pair", Kind::Pair),
        ("name", Kind::Name),
        ("number", Kind::Number),
        ("code", Kind::Code),
        ("hex", Kind::Hex),
        ("uuid", Kind::Uuid),
    ];

    /// What RULER calls such a value.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Kind::Word | Kind::Pair => "word",
            Kind::Name => "name",
            Kind::Number => "number",
            Kind::Code | Kind::Hex => "code",
            Kind::Uuid => "uuid",
        }
    }
}

const SYLLABLES: &str = "ba be bo da den dor el en fa fen gar go hal im jo ka kel lan lo mar mi na \
                         nor o pel qua ra rin sa sol ta tor u van vel wi xan ya zor";

/// Keys where the text has too few words of its own: one in other letters, or RULER's five sentences.
const WORDS: &str = "acorn amber anchor apron arrow autumn badge barrel basket beacon blanket \
                     bottle branch bridge bronze bucket button cabin candle canvas carpet castle \
                     cedar cellar chapel cherry circle clover coast copper corner cotton cradle \
                     crystal curtain dagger desert donkey drawer eagle engine falcon feather fence \
                     field flute forest fountain garden garlic ginger glove granite hammer harbor \
                     harvest helmet honey island ivory jacket kettle ladder lantern lemon linen \
                     magnet maple marble meadow mirror needle nickel orchard oyster paddle pepper \
                     pigeon pillow planet pocket ribbon saddle sailor salmon shadow silver spider \
                     stable tunnel turtle valley velvet violin walnut window winter";

/// Words of a text that are enough for keys.
const ENOUGH: usize = 16;

/// Where keys and values are drawn from.
#[derive(Clone)]
pub(super) struct Things {
    words: Vec<String>,
    key: Kind,
    value: Kind,
    digits: (usize, usize),
}

impl Things {
    /// Keys are made of the text's words, if these are enough. Numbers have so many digits at least and
    /// at most.
    pub(super) fn new(
        mut words: Vec<String>,
        key: Kind,
        value: Kind,
        digits: (usize, usize),
    ) -> Things {
        if words.len() < ENOUGH {
            words = WORDS.split_whitespace().map(str::to_owned).collect();
        }
        Things { words, key, value, digits }
    }

    /// For a new document, in which nothing has occurred yet.
    pub(super) fn fresh(&self) -> Unused<'_> {
        Unused { things: self, used: HashSet::new() }
    }
}

/// Draws what has not occurred in a document yet.
pub(super) struct Unused<'t> {
    things: &'t Things,
    used: HashSet<String>,
}

impl Unused<'_> {
    pub(super) fn key(&mut self, random: &mut Random) -> String {
        self.new_of(self.things.key, random)
    }

    pub(super) fn value(&mut self, random: &mut Random) -> String {
        self.new_of(self.things.value, random)
    }

    /// A number of so many digits.
    pub(super) fn number(&mut self, low: usize, high: usize, random: &mut Random) -> String {
        self.unused(|random, longer| digits(random, low, high + longer), random)
    }

    /// Capital letters as the name of a variable.
    pub(super) fn variable(&mut self, letters: usize, random: &mut Random) -> String {
        self.unused(|random, longer| capitals(random, letters + longer), random)
    }

    fn new_of(&mut self, kind: Kind, random: &mut Random) -> String {
        let things = self.things;
        self.unused(|random, longer| thing(kind, things, longer, random), random)
    }

    /// Where small kinds are used up, what is drawn becomes longer, so that this ends.
    fn unused(
        &mut self,
        make: impl Fn(&mut Random, usize) -> String,
        random: &mut Random,
    ) -> String {
        let mut tries = 0;
        loop {
            let made = make(random, tries / 64);
            if self.used.insert(made.clone()) {
                return made;
            }
            tries += 1;
        }
    }
}

fn thing(kind: Kind, things: &Things, longer: usize, random: &mut Random) -> String {
    let word = |random: &mut Random| random.pick(&things.words).clone();
    match kind {
        Kind::Word if longer == 0 => word(random),
        Kind::Word | Kind::Pair => {
            let mut joined = word(random);
            for _ in 0..longer.max(1) {
                joined = format!("{joined}-{}", word(random));
            }
            joined
        }
        Kind::Name => name(longer, random),
        Kind::Number => digits(random, things.digits.0, things.digits.1 + longer),
        Kind::Code => {
            let letters = random.within(1, 3);
            format!("{}-{}", capitals(random, letters), digits(random, 2, 4 + longer))
        }
        Kind::Hex => hexes(random, 8 + longer),
        Kind::Uuid => [8, 4, 4, 4, 12].map(|n| hexes(random, n)).join("-"),
    }
}

fn name(longer: usize, random: &mut Random) -> String {
    let syllables: Vec<&str> = SYLLABLES.split_whitespace().collect();
    let count = random.within(2, 3 + longer);
    let made: String = (0..count).map(|_| *random.pick(&syllables)).collect();
    let (first, rest) = made.split_at(1);
    first.to_uppercase() + rest
}

fn digits(random: &mut Random, low: usize, high: usize) -> String {
    let count = random.within(low, high);
    let first = random.within(1, 9).to_string();
    (1..count).fold(first, |number, _| number + &random.below(10).to_string())
}

fn hexes(random: &mut Random, count: usize) -> String {
    (0..count).map(|_| *random.pick(b"0123456789abcdef") as char).collect()
}

fn capitals(random: &mut Random, count: usize) -> String {
    (0..count).map(|_| *random.pick(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ") as char).collect()
}
