//! Split patterns as small programs, and the matcher that runs them.
//!
//! Patterns are compiled when the model is (see `pattern::compile`), so the artefact carries
//! neither a regular-expression parser nor Unicode tables beyond the ranges its patterns name, and
//! the first encode pays for no compilation. The matcher backtracks, leftmost and first
//! alternative first, as Perl, Oniguruma and `fancy-regex` do.
//!
//! Invariants: [`Program::read`] accepts only programs whose jumps stay inside and in which every
//! loop consumes a character, so each attempt ends; a step budget linear in the text bounds
//! backtracking and steps back; recursion happens only for look-around and atomic groups and is at most
//! [`MAX_DEPTH`] deep.

#[cfg(feature = "pack")]
pub(crate) mod compile;
#[cfg(test)]
mod tests;

use crate::TokenizerError;
use crate::table::Reader;
#[cfg(feature = "pack")]
use crate::table::Writer;

/// Deepest nesting of look-around and atomic groups.
pub(crate) const MAX_DEPTH: u32 = 8;
/// Largest program, in instructions.
pub(crate) const MAX_INSTRUCTIONS: usize = 1 << 14;
/// Most characters that a look-behind steps back over; published patterns need a few.
pub(crate) const MAX_BACK: u32 = 255;

/// How a run of one class gives characters back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greed {
    Greedy,
    Lazy,
    Possessive,
}

/// Zero-width conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    TextStart,
    TextEnd,
    /// The end, or before a line feed that ends the text.
    TextEndOrFinalNewline,
    /// As Oniguruma has it: the start, or after a line feed that is not the last character.
    LineStart,
    LineEnd,
    WordBoundary,
    NotWordBoundary,
}

const ANCHORS: [Anchor; 7] = [
    Anchor::TextStart,
    Anchor::TextEnd,
    Anchor::TextEndOrFinalNewline,
    Anchor::LineStart,
    Anchor::LineEnd,
    Anchor::WordBoundary,
    Anchor::NotWordBoundary,
];

/// One instruction. Targets are indices of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    Match,
    /// One character of the class.
    Class(u32),
    /// Between `min` and `max` characters of the class.
    Run {
        class: u32,
        min: u32,
        max: u32,
        greed: Greed,
    },
    /// Try `first`, then `second`.
    Split {
        first: u32,
        second: u32,
    },
    Jump(u32),
    /// `word` is the class `\w`, for the boundary conditions.
    Assert {
        anchor: Anchor,
        word: u32,
    },
    /// The body follows, ends in `Match`; the program goes on at `end`. `back` characters are
    /// stepped back over first (look-behind).
    Look {
        end: u32,
        back: u32,
        negative: bool,
    },
    /// The body follows, ends in `Match`; its first way to match is the only one tried.
    Atomic {
        end: u32,
    },
}

/// A set of characters: a bitmap for ASCII, sorted disjoint ranges for the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    ascii: u128,
    ranges: Vec<(u32, u32)>,
}

impl Class {
    /// From sorted disjoint inclusive ranges.
    #[cfg(feature = "pack")]
    pub(crate) fn new(all: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut class = Self::default();
        for (first, last) in all {
            for code in first..=last.min(127) {
                class.ascii |= 1 << code;
            }
            if last >= 128 {
                class.ranges.push((first.max(128), last));
            }
        }
        class
    }

    pub(crate) fn contains(&self, character: char) -> bool {
        let code = u32::from(character);
        if code < 128 {
            return self.ascii >> code & 1 == 1;
        }
        let index = self.ranges.partition_point(|&(_, last)| last < code);
        self.ranges.get(index).is_some_and(|&(first, _)| first <= code)
    }
}

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    classes: Vec<Class>,
}

impl Program {
    #[cfg(feature = "pack")]
    pub(crate) fn new(instructions: Vec<Instruction>, classes: Vec<Class>) -> Self {
        Self { instructions, classes }
    }

    /// Whether the text's first (or last) character belongs to this program's first class; used
    /// for `\w` alone.
    pub(crate) fn first_class_contains(&self, character: Option<char>) -> bool {
        character.is_some_and(|c| self.classes.first().is_some_and(|class| class.contains(c)))
    }

    /// Reads one program and checks it.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, TokenizerError> {
        let class_count = reader.count(20)?;
        let mut classes = Vec::with_capacity(class_count);
        for _ in 0..class_count {
            let mut ascii = 0u128;
            for part in 0..4 {
                ascii |= u128::from(reader.word()?) << (32 * part);
            }
            let range_count = reader.count(8)?;
            let mut ranges = Vec::with_capacity(range_count);
            for _ in 0..range_count {
                ranges.push((reader.word()?, reader.word()?));
            }
            classes.push(Class { ascii, ranges });
        }
        let count = reader.count(16)?;
        if count == 0 || count > MAX_INSTRUCTIONS {
            return reader.fail("a program has no or too many instructions");
        }
        let mut instructions = Vec::with_capacity(count);
        for _ in 0..count {
            let words = [reader.word()?, reader.word()?, reader.word()?, reader.word()?];
            match decode(words) {
                Some(instruction) => instructions.push(instruction),
                None => return reader.fail("unknown instruction"),
            }
        }
        let program = Self { instructions, classes };
        if !program.is_sound() {
            return reader
                .fail("a program jumps outside, looks too far back or loops without consuming");
        }
        Ok(program)
    }

    #[cfg(feature = "pack")]
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.count(self.classes.len());
        for class in &self.classes {
            for part in 0..4 {
                writer.word((class.ascii >> (32 * part)) as u32);
            }
            writer.count(class.ranges.len());
            for &(first, last) in &class.ranges {
                writer.word(first);
                writer.word(last);
            }
        }
        writer.count(self.instructions.len());
        for &instruction in &self.instructions {
            for part in encode(instruction) {
                writer.word(part);
            }
        }
    }

    /// Targets and classes exist, no look-behind goes too far, and no cycle is free of consuming
    /// instructions.
    pub(crate) fn is_sound(&self) -> bool {
        let count = self.instructions.len() as u32;
        let class_count = self.classes.len() as u32;
        let mut state = vec![0u8; self.instructions.len()];
        let mut stack: Vec<(u32, u32)> = Vec::new();
        for (index, &instruction) in self.instructions.iter().enumerate() {
            let sound = match instruction {
                Instruction::Match => true,
                Instruction::Class(class) => class < class_count && (index as u32) + 1 < count,
                Instruction::Run { class, min, max, .. } => {
                    class < class_count && min <= max && (index as u32) + 1 < count
                }
                Instruction::Assert { anchor, word } => {
                    let needs = matches!(anchor, Anchor::WordBoundary | Anchor::NotWordBoundary);
                    (!needs || word < class_count) && (index as u32) + 1 < count
                }
                Instruction::Split { first, second } => first < count && second < count,
                Instruction::Jump(target) => target < count,
                Instruction::Look { end, back, .. } => {
                    end < count && end > index as u32 && back <= MAX_BACK
                }
                Instruction::Atomic { end } => end < count && end > index as u32,
            };
            if !sound {
                return false;
            }
        }
        // Depth-first search over edges that consume nothing; a grey node met again is a cycle.
        for root in 0..count {
            if state[root as usize] != 0 {
                continue;
            }
            state[root as usize] = 1;
            stack.push((root, 0));
            while let Some((node, edge)) = stack.pop() {
                match self.free_edge(node, edge) {
                    None => state[node as usize] = 2,
                    Some(next) => {
                        stack.push((node, edge + 1));
                        match state[next as usize] {
                            0 => {
                                state[next as usize] = 1;
                                stack.push((next, 0));
                            }
                            1 => return false,
                            _ => {}
                        }
                    }
                }
            }
        }
        true
    }

    /// The `edge`-th way to go on from `node` without consuming a character.
    fn free_edge(&self, node: u32, edge: u32) -> Option<u32> {
        match (self.instructions[node as usize], edge) {
            (Instruction::Run { min: 0, .. } | Instruction::Assert { .. }, 0) => Some(node + 1),
            (Instruction::Split { first, .. }, 0) => Some(first),
            (Instruction::Split { second, .. }, 1) => Some(second),
            (Instruction::Jump(target), 0) => Some(target),
            (Instruction::Look { .. } | Instruction::Atomic { .. }, 0) => Some(node + 1),
            (Instruction::Look { end, .. } | Instruction::Atomic { end }, 1) => Some(end),
            _ => None,
        }
    }

    /// Spans of all matches, leftmost first and not overlapping. An empty match directly after
    /// another match is skipped, and a search after an empty match goes on one character later.
    pub(crate) fn find_all(&self, text: &str) -> Result<Vec<(usize, usize)>, Budget> {
        let mut matcher = Matcher {
            program: self,
            text,
            stack: Vec::new(),
            left: step_budget(text.len()),
            depth: 0,
        };
        let mut matches = Vec::new();
        let mut start = 0;
        let mut last_end = None;
        while start <= text.len() {
            let end = matcher.run(0, start)?;
            match end {
                Some(end) if end > start || last_end != Some(end) => {
                    matches.push((start, end));
                    last_end = Some(end);
                    start = if end > start { end } else { after(text, start) };
                }
                _ => start = after(text, start),
            }
        }
        Ok(matches)
    }
}

/// The text made the matcher exceed its step budget.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Budget;

/// Steps allowed for one text: generous for every sane pattern, and linear.
pub(crate) fn step_budget(len: usize) -> u64 {
    1_000_000 + 1000 * len as u64
}

fn after(text: &str, position: usize) -> usize {
    position + text.get(position..).and_then(|t| t.chars().next()).map_or(1, char::len_utf8)
}

fn before(text: &str, position: usize) -> Option<usize> {
    let previous = text.get(..position)?.chars().next_back()?;
    Some(position - previous.len_utf8())
}

/// A way back: at `pc`, from `position`, or from any character boundary between `floor` and
/// `position`, furthest first (`lazy`: nearest first, one more character of the run each time).
#[derive(Clone, Copy)]
struct Choice {
    pc: u32,
    position: usize,
    floor: usize,
    lazy_left: u32,
}

struct Matcher<'p, 't> {
    program: &'p Program,
    text: &'t str,
    stack: Vec<Choice>,
    left: u64,
    depth: u32,
}

impl Matcher<'_, '_> {
    /// Matches from `pc` at `position`; gives the end.
    fn run(&mut self, mut pc: u32, mut position: usize) -> Result<Option<usize>, Budget> {
        let base = self.stack.len();
        loop {
            self.left = self.left.checked_sub(1).ok_or(Budget)?;
            let proceeds = match self.program.instructions.get(pc as usize) {
                None | Some(Instruction::Match) => {
                    self.stack.truncate(base);
                    return Ok(Some(position));
                }
                Some(&Instruction::Class(class)) => match self.one(class, position) {
                    Some(next) => {
                        position = next;
                        pc += 1;
                        true
                    }
                    None => false,
                },
                Some(&Instruction::Run { class, min, max, greed }) => {
                    match self.run_of(class, min, max, greed, pc, position) {
                        Some(next) => {
                            position = next;
                            pc += 1;
                            true
                        }
                        None => false,
                    }
                }
                Some(&Instruction::Split { first, second }) => {
                    self.stack.push(Choice { pc: second, position, floor: position, lazy_left: 0 });
                    pc = first;
                    true
                }
                Some(&Instruction::Jump(target)) => {
                    pc = target;
                    true
                }
                Some(&Instruction::Assert { anchor, word }) => {
                    pc += 1;
                    self.holds(anchor, word, position)
                }
                Some(&Instruction::Look { end, back, negative }) => {
                    self.left = self.left.checked_sub(u64::from(back)).ok_or(Budget)?;
                    let start = (0..back).try_fold(position, |at, _| before(self.text, at));
                    let found = match start {
                        Some(start) => self.nested(pc + 1, start)?.is_some(),
                        None => false,
                    };
                    pc = end;
                    found != negative
                }
                Some(&Instruction::Atomic { end }) => match self.nested(pc + 1, position)? {
                    Some(next) => {
                        position = next;
                        pc = end;
                        true
                    }
                    None => false,
                },
            };
            if !proceeds {
                match self.back_off(base) {
                    Some((choice_pc, choice_position)) => {
                        pc = choice_pc;
                        position = choice_position;
                    }
                    None => return Ok(None),
                }
            }
        }
    }

    fn nested(&mut self, pc: u32, position: usize) -> Result<Option<usize>, Budget> {
        if self.depth >= MAX_DEPTH {
            return Err(Budget);
        }
        self.depth += 1;
        let end = self.run(pc, position);
        self.depth -= 1;
        end
    }

    fn one(&self, class: u32, position: usize) -> Option<usize> {
        let character = self.text.get(position..)?.chars().next()?;
        let class = self.program.classes.get(class as usize)?;
        class.contains(character).then(|| position + character.len_utf8())
    }

    fn run_of(
        &mut self,
        class: u32,
        min: u32,
        max: u32,
        greed: Greed,
        pc: u32,
        start: usize,
    ) -> Option<usize> {
        let want = if greed == Greed::Lazy { min } else { max };
        let set = self.program.classes.get(class as usize)?;
        let mut position = start;
        let mut floor = start;
        let mut taken = 0;
        for character in self.text.get(start..)?.chars() {
            if taken == want || !set.contains(character) {
                break;
            }
            position += character.len_utf8();
            taken += 1;
            if taken == min {
                floor = position;
            }
        }
        if taken < min {
            return None;
        }
        self.left = self.left.saturating_sub(u64::from(taken / 16));
        match greed {
            Greed::Greedy if position > floor => {
                self.stack.push(Choice { pc: pc + 1, position, floor, lazy_left: 0 });
            }
            Greed::Lazy if max > min => {
                let lazy_left = max - min;
                self.stack.push(Choice { pc, position, floor: position, lazy_left });
            }
            _ => {}
        }
        Some(position)
    }

    /// Takes the latest choice's next alternative; choices below `base` belong to outer runs.
    fn back_off(&mut self, base: usize) -> Option<(u32, usize)> {
        while self.stack.len() > base {
            let choice = self.stack.pop()?;
            if choice.lazy_left > 0 {
                let Some(&Instruction::Run { class, .. }) =
                    self.program.instructions.get(choice.pc as usize)
                else {
                    continue;
                };
                let Some(next) = self.one(class, choice.position) else { continue };
                if choice.lazy_left > 1 {
                    let lazy_left = choice.lazy_left - 1;
                    self.stack.push(Choice { position: next, floor: next, lazy_left, ..choice });
                }
                return Some((choice.pc + 1, next));
            }
            if choice.position > choice.floor {
                let Some(position) = before(self.text, choice.position) else { continue };
                if position > choice.floor {
                    self.stack.push(Choice { position, ..choice });
                }
                return Some((choice.pc, position));
            }
            return Some((choice.pc, choice.position));
        }
        None
    }

    fn holds(&self, anchor: Anchor, word: u32, position: usize) -> bool {
        let (head, tail) = self.text.split_at_checked(position).unwrap_or((self.text, ""));
        let is_word = |character: Option<char>| {
            character.is_some_and(|c| {
                self.program.classes.get(word as usize).is_some_and(|class| class.contains(c))
            })
        };
        let boundary = || is_word(head.chars().next_back()) != is_word(tail.chars().next());
        match anchor {
            Anchor::TextStart => head.is_empty(),
            Anchor::TextEnd => tail.is_empty(),
            Anchor::TextEndOrFinalNewline => tail.is_empty() || tail == "\n",
            Anchor::LineStart => head.is_empty() || head.ends_with('\n') && !tail.is_empty(),
            Anchor::LineEnd => tail.is_empty() || tail.starts_with('\n'),
            Anchor::WordBoundary => boundary(),
            Anchor::NotWordBoundary => !boundary(),
        }
    }
}

fn decode(words: [u32; 4]) -> Option<Instruction> {
    let [head, a, b, c] = words;
    let detail = head >> 8;
    Some(match head & 0xff {
        0 => Instruction::Match,
        1 => Instruction::Class(a),
        2 => {
            let greed = match detail {
                0 => Greed::Greedy,
                1 => Greed::Lazy,
                2 => Greed::Possessive,
                _ => return None,
            };
            Instruction::Run { class: a, min: b, max: c, greed }
        }
        3 => Instruction::Split { first: a, second: b },
        4 => Instruction::Jump(a),
        5 => Instruction::Assert { anchor: *ANCHORS.get(detail as usize)?, word: a },
        6 => Instruction::Look { end: a, back: b, negative: c != 0 },
        7 => Instruction::Atomic { end: a },
        _ => return None,
    })
}

#[cfg(feature = "pack")]
fn encode(instruction: Instruction) -> [u32; 4] {
    match instruction {
        Instruction::Match => [0; 4],
        Instruction::Class(class) => [1, class, 0, 0],
        Instruction::Run { class, min, max, greed } => [2 | (greed as u32) << 8, class, min, max],
        Instruction::Split { first, second } => [3, first, second, 0],
        Instruction::Jump(target) => [4, target, 0, 0],
        Instruction::Assert { anchor, word } => {
            let index = ANCHORS.iter().position(|&a| a == anchor).unwrap_or(0) as u32;
            [5 | index << 8, word, 0, 0]
        }
        Instruction::Look { end, back, negative } => [6, end, back, u32::from(negative)],
        Instruction::Atomic { end } => [7, end, 0, 0],
    }
}
