//! Compiles the regular expressions of tokenizer.json into [`Program`]s.
//!
//! Understood: literals, classes (nested, negated, intersected, Unicode properties), groups,
//! alternation, greedy, lazy and possessive quantifiers, `(?i)`, look-ahead, look-behind of fixed
//! length, atomic groups, anchors and word boundaries. Anything else (back-references, look-behind
//! of variable length, loops over an atomic group or something that may be empty) is an error that says so, never an
//! approximation. Character classes are read by `regex-syntax`, which `fancy-regex` uses too.
//! `^` and `$` are line anchors, as in Oniguruma, which the published tokenizers were made with.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange, HirKind};

use super::{Anchor, Class, Greed, Instruction, MAX_BACK, MAX_DEPTH, MAX_INSTRUCTIONS, Program};

/// Largest count in `{m,n}` over something other than one class, which is copied out.
const MAX_COPIES: u32 = 256;

/// What a pattern contains that is malformed or not understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

fn refuse<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(what.into()))
}

/// Compiles one pattern.
pub(crate) fn compile(pattern: &str) -> Result<Program, Refusal> {
    let mut parser =
        Parser { rest: pattern, ignore_case: false, dot_matches_newline: false, depth: 0 };
    let tree = parser.alternation()?;
    if !parser.rest.is_empty() {
        return refuse("an unmatched `)`");
    }
    finish(&tree)
}

/// A program that matches `literal` exactly.
pub(crate) fn compile_literal(literal: &str) -> Result<Program, Refusal> {
    finish(&Tree::Concat(literal.chars().map(|c| Tree::Class(single(c))).collect()))
}

fn finish(tree: &Tree) -> Result<Program, Refusal> {
    let mut emitter = Emitter { instructions: Vec::new(), classes: Vec::new() };
    emitter.tree(tree)?;
    emitter.push(Instruction::Match)?;
    let program = Program::new(emitter.instructions, emitter.classes);
    if !program.is_sound() {
        return refuse("a loop over an atomic group or something that may be empty");
    }
    Ok(program)
}

#[derive(Clone, Debug)]
enum Tree {
    Class(ClassUnicode),
    Anchor(Anchor),
    Concat(Vec<Tree>),
    Alternation(Vec<Tree>),
    Repeat { body: Box<Tree>, min: u32, max: u32, greed: Greed },
    Look { body: Box<Tree>, ahead: bool, negative: bool },
    Atomic(Box<Tree>),
}

fn single(character: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(character, character)])
}

/// Has `regex-syntax` read one class, escape or property.
fn class_of(source: &str, ignore_case: bool) -> Result<ClassUnicode, Refusal> {
    let hir = ParserBuilder::new()
        .case_insensitive(ignore_case)
        .build()
        .parse(source)
        .map_err(|_| Refusal(format!("the class `{source}`")))?;
    match hir.kind() {
        HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => Ok(class.clone()),
        HirKind::Literal(literal) => {
            let mut chars = std::str::from_utf8(&literal.0).unwrap_or("").chars();
            match (chars.next(), chars.next()) {
                (Some(character), None) => Ok(single(character)),
                _ => refuse(format!("the class `{source}`")),
            }
        }
        _ => refuse(format!("the class `{source}`")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    ignore_case: bool,
    dot_matches_newline: bool,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, prefix: &str) -> bool {
        let tail = self.rest.strip_prefix(prefix);
        self.rest = tail.unwrap_or(self.rest);
        tail.is_some()
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Cuts `len` bytes off the front; `len` is at a character boundary.
    fn cut(&mut self, len: usize) -> &'a str {
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        head
    }

    fn alternation(&mut self) -> Result<Tree, Refusal> {
        // Flags set inside a group end with it.
        let (ignore_case, dot_matches_newline) = (self.ignore_case, self.dot_matches_newline);
        self.depth += 1;
        if self.depth > 64 {
            return refuse("nesting deeper than 64 groups");
        }
        let mut branches = vec![self.concat()?];
        while self.eat("|") {
            branches.push(self.concat()?);
        }
        self.depth -= 1;
        (self.ignore_case, self.dot_matches_newline) = (ignore_case, dot_matches_newline);
        if branches.len() == 1 {
            return Ok(branches.remove(0));
        }
        Ok(Tree::Alternation(branches))
    }

    fn concat(&mut self) -> Result<Tree, Refusal> {
        let mut parts = Vec::new();
        while let Some(character) = self.peek() {
            if character == '|' || character == ')' {
                break;
            }
            if let Some(atom) = self.atom(character)? {
                parts.push(self.quantified(atom)?);
            }
        }
        Ok(Tree::Concat(parts))
    }

    /// One atom; `None` for a group that only sets flags.
    fn atom(&mut self, character: char) -> Result<Option<Tree>, Refusal> {
        Ok(Some(match character {
            '(' => return self.group(),
            '[' => {
                let len = class_len(self.rest)?;
                let source = self.cut(len);
                Tree::Class(class_of(&as_oniguruma(source)?, self.ignore_case)?)
            }
            '\\' => self.escape()?,
            '.' => {
                self.cut(1);
                Tree::Class(class_of(
                    if self.dot_matches_newline { r"[\s\S]" } else { r"[^\n]" },
                    false,
                )?)
            }
            '^' => {
                self.cut(1);
                Tree::Anchor(Anchor::LineStart)
            }
            '$' => {
                self.cut(1);
                Tree::Anchor(Anchor::LineEnd)
            }
            '*' | '+' | '?' => return refuse(format!("`{character}` without anything to repeat")),
            literal => {
                self.cut(literal.len_utf8());
                self.literal(literal)
            }
        }))
    }

    fn literal(&self, character: char) -> Tree {
        let mut class = single(character);
        if self.ignore_case {
            class.case_fold_simple();
        }
        Tree::Class(class)
    }

    fn group(&mut self) -> Result<Option<Tree>, Refusal> {
        self.cut(1);
        let tree = if self.eat("?:") {
            self.alternation()?
        } else if self.eat("?=") {
            Tree::Look { body: Box::new(self.alternation()?), ahead: true, negative: false }
        } else if self.eat("?!") {
            Tree::Look { body: Box::new(self.alternation()?), ahead: true, negative: true }
        } else if self.eat("?<=") {
            Tree::Look { body: Box::new(self.alternation()?), ahead: false, negative: false }
        } else if self.eat("?<!") {
            Tree::Look { body: Box::new(self.alternation()?), ahead: false, negative: true }
        } else if self.eat("?>") {
            Tree::Atomic(Box::new(self.alternation()?))
        } else if self.eat("?P<") || self.eat("?<") {
            // The name only matters to references, which are refused.
            let Some(end) = self.rest.find('>') else { return refuse("an open group name") };
            self.cut(end + 1);
            self.alternation()?
        } else if self.eat("?") {
            return self.flags();
        } else {
            self.alternation()?
        };
        if !self.eat(")") {
            return refuse("an unclosed group");
        }
        Ok(Some(tree))
    }

    /// `(?i)` holds to the end of the enclosing group, `(?i:…)` inside its own.
    fn flags(&mut self) -> Result<Option<Tree>, Refusal> {
        let outer = (self.ignore_case, self.dot_matches_newline);
        let mut value = true;
        loop {
            let Some(flag) = self.peek() else { return refuse("an unclosed group") };
            self.cut(flag.len_utf8());
            match flag {
                'i' => self.ignore_case = value,
                's' => self.dot_matches_newline = value,
                '-' => value = false,
                ')' => return Ok(None),
                ':' => {
                    let tree = self.alternation()?;
                    (self.ignore_case, self.dot_matches_newline) = outer;
                    if !self.eat(")") {
                        return refuse("an unclosed group");
                    }
                    return Ok(Some(tree));
                }
                other => return refuse(format!("the flag `{other}`")),
            }
        }
    }

    fn escape(&mut self) -> Result<Tree, Refusal> {
        let Some(letter) = self.rest.chars().nth(1) else { return refuse("a final `\\`") };
        let anchor = match letter {
            'A' => Some(Anchor::TextStart),
            'z' => Some(Anchor::TextEnd),
            'Z' => Some(Anchor::TextEndOrFinalNewline),
            'b' => Some(Anchor::WordBoundary),
            'B' => Some(Anchor::NotWordBoundary),
            _ => None,
        };
        if let Some(anchor) = anchor {
            self.cut(2);
            return Ok(Tree::Anchor(anchor));
        }
        let braces = |open: usize| match self.rest[open..].strip_prefix('{') {
            Some(tail) => tail.find('}').map(|end| open + end + 2),
            None => None,
        };
        let len = match letter {
            'p' | 'P' => match braces(2) {
                Some(len) => len,
                None => 2 + self.rest[2..].chars().next().map_or(0, char::len_utf8),
            },
            'x' | 'u' | 'U' => match braces(2) {
                Some(len) => len,
                None => {
                    let digits = match letter {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    if !self.rest.is_char_boundary(2 + digits) || self.rest.len() < 2 + digits {
                        return refuse(format!("the escape `\\{letter}`"));
                    }
                    2 + digits
                }
            },
            's' | 'S' | 'd' | 'D' | 'w' | 'W' | 'n' | 'r' | 't' | 'f' | 'v' | 'a' => 2,
            _ if letter.is_alphanumeric() => return refuse(format!("the escape `\\{letter}`")),
            _ => {
                self.cut(1 + letter.len_utf8());
                return Ok(self.literal(letter));
            }
        };
        let source = self.cut(len);
        Ok(Tree::Class(class_of(source, self.ignore_case)?))
    }

    fn quantified(&mut self, atom: Tree) -> Result<Tree, Refusal> {
        let mut tree = atom;
        loop {
            let (min, max, counted) = match self.peek() {
                Some('?') => (0, 1, false),
                Some('*') => (0, u32::MAX, false),
                Some('+') => (1, u32::MAX, false),
                Some('{') => match count_braces(self.rest) {
                    Some((min, max, len)) => {
                        self.cut(len - 1);
                        (min, max, true)
                    }
                    // As in Oniguruma and fancy-regex, other braces are literals.
                    None => return Ok(tree),
                },
                _ => return Ok(tree),
            };
            self.cut(1);
            if min > max {
                return refuse("a count `{m,n}` with m above n");
            }
            let greed = if self.eat("?") {
                Greed::Lazy
            } else if !counted && self.eat("+") {
                Greed::Possessive
            } else {
                Greed::Greedy
            };
            if matches!(tree, Tree::Anchor(_) | Tree::Look { .. }) {
                return refuse("a repeated condition");
            }
            tree = Tree::Repeat { body: Box::new(tree), min, max, greed };
        }
    }
}

/// Reads `{m}`, `{m,}`, `{,n}` or `{m,n}`: bounds and length in bytes.
fn count_braces(source: &str) -> Option<(u32, u32, usize)> {
    let end = source.find('}')?;
    let inside = source.get(1..end)?;
    let (min, max) = match inside.split_once(',') {
        None => {
            let count = inside.parse().ok()?;
            (count, count)
        }
        Some(("", "")) => return None,
        Some(("", max)) => (0, max.parse().ok()?),
        Some((min, "")) => (min.parse().ok()?, u32::MAX),
        Some((min, max)) => (min.parse().ok()?, max.parse().ok()?),
    };
    Some((min, max, end + 1))
}

/// Length of the bracketed class that `source` starts with.
fn class_len(source: &str) -> Result<usize, Refusal> {
    let mut depth = 0;
    let mut chars = source.char_indices().peekable();
    // A `]` directly after `[` or `[^` stands for itself.
    let mut literal_close = false;
    while let Some((index, character)) = chars.next() {
        let opened = std::mem::take(&mut literal_close);
        match character {
            '\\' => {
                chars.next();
            }
            '[' => {
                depth += 1;
                chars.next_if(|&(_, c)| c == '^');
                literal_close = true;
            }
            ']' if !opened => {
                depth -= 1;
                if depth == 0 {
                    return Ok(index + 1);
                }
            }
            _ => {}
        }
    }
    refuse("an unclosed class")
}

/// A bracketed class as `regex-syntax` must be given it to read what Oniguruma does: the names of POSIX
/// brackets are Unicode's there and not ASCII's, and neither `--` nor `~~` is an operator.
fn as_oniguruma(source: &str) -> Result<String, Refusal> {
    let mut meant = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(character) = rest.chars().next() {
        if let Some((name, tail)) = posix_bracket(rest).filter(|_| !meant.is_empty()) {
            let (negated, name) = match name.strip_prefix('^') {
                Some(name) => ("^", name),
                None => ("", name),
            };
            let Some((_, set)) = POSIX.iter().find(|(known, _)| *known == name) else {
                return refuse(format!("the bracket `[:{name}:]`"));
            };
            meant.extend(["[", negated, set, "]"]);
            rest = tail;
            continue;
        }
        if let Some(operator) = ["--", "~~"].into_iter().find(|twice| rest.starts_with(twice)) {
            return refuse(format!("`{operator}` in the class `{source}`"));
        }
        let escaped = rest[character.len_utf8()..].chars().next().filter(|_| character == '\\');
        let (head, tail) = rest.split_at(character.len_utf8() + escaped.map_or(0, char::len_utf8));
        meant.push_str(head);
        rest = tail;
    }
    Ok(meant)
}

/// What Oniguruma's POSIX brackets hold. What `graph`, `print` and `punct` hold has changed from version to
/// version, so they are refused.
pub(super) const POSIX: [(&str, &str); 11] = [
    ("alnum", r"\p{Alphabetic}\p{Nd}"),
    ("alpha", r"\p{Alphabetic}"),
    ("ascii", r"\x00-\x7F"),
    ("blank", r"\p{Zs}\t"),
    ("cntrl", r"\p{Cc}"),
    ("digit", r"\p{Nd}"),
    ("lower", r"\p{Lowercase}"),
    ("space", r"\p{White_Space}"),
    ("upper", r"\p{Uppercase}"),
    ("word", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"),
    ("xdigit", r"0-9A-Fa-f"),
];

/// The name in `[:name:]` or `[:^name:]` that `source` starts with, and what follows it.
fn posix_bracket(source: &str) -> Option<(&str, &str)> {
    let (name, tail) = source.strip_prefix("[:")?.split_once(":]")?;
    let letters = name.strip_prefix('^').unwrap_or(name);
    let is_name = !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_name.then_some((name, tail))
}

/// The number of characters that every match of `tree` has, if it is one number.
fn fixed_len(tree: &Tree) -> Option<u32> {
    match tree {
        Tree::Class(_) => Some(1),
        Tree::Anchor(_) | Tree::Look { .. } => Some(0),
        Tree::Concat(parts) => {
            parts.iter().try_fold(0u32, |sum, part| sum.checked_add(fixed_len(part)?))
        }
        Tree::Alternation(branches) => {
            let first = fixed_len(branches.first()?)?;
            branches[1..].iter().all(|branch| fixed_len(branch) == Some(first)).then_some(first)
        }
        Tree::Repeat { body, min, max, .. } if min == max => fixed_len(body)?.checked_mul(*min),
        Tree::Repeat { .. } => None,
        Tree::Atomic(body) => fixed_len(body),
    }
}

struct Emitter {
    instructions: Vec<Instruction>,
    classes: Vec<Class>,
}

impl Emitter {
    fn push(&mut self, instruction: Instruction) -> Result<usize, Refusal> {
        if self.instructions.len() >= MAX_INSTRUCTIONS {
            return refuse(format!("a pattern of more than {MAX_INSTRUCTIONS} steps"));
        }
        self.instructions.push(instruction);
        Ok(self.instructions.len() - 1)
    }

    fn here(&self) -> u32 {
        self.instructions.len() as u32
    }

    fn class(&mut self, class: &ClassUnicode) -> u32 {
        let class = Class::new(class.iter().map(|r| (u32::from(r.start()), u32::from(r.end()))));
        let index = self.classes.iter().position(|known| *known == class);
        index.unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        }) as u32
    }

    fn tree(&mut self, tree: &Tree) -> Result<(), Refusal> {
        self.tree_at(tree, 0)
    }

    fn tree_at(&mut self, tree: &Tree, looks: u32) -> Result<(), Refusal> {
        match tree {
            Tree::Class(class) => {
                let class = self.class(class);
                self.push(Instruction::Class(class))?;
            }
            Tree::Anchor(anchor) => {
                let word = match anchor {
                    Anchor::WordBoundary | Anchor::NotWordBoundary => {
                        let word = class_of(r"\w", false)?;
                        self.class(&word)
                    }
                    _ => 0,
                };
                self.push(Instruction::Assert { anchor: *anchor, word })?;
            }
            Tree::Concat(parts) => {
                for part in parts {
                    self.tree_at(part, looks)?;
                }
            }
            Tree::Alternation(branches) => self.alternation(branches, looks)?,
            Tree::Repeat { body, min, max, greed } => {
                self.repeat(body, *min, *max, *greed, looks)?;
            }
            Tree::Look { body, ahead, negative } => {
                let back = match (ahead, fixed_len(body)) {
                    (true, _) => 0,
                    (false, Some(len)) if len > MAX_BACK => {
                        return refuse(format!("look-behind over more than {MAX_BACK} characters"));
                    }
                    (false, Some(len)) => len,
                    (false, None) => return refuse("look-behind of variable length"),
                };
                let look = Instruction::Look { end: 0, back, negative: *negative };
                self.enclosed(look, body, looks)?;
            }
            Tree::Atomic(body) => self.enclosed(Instruction::Atomic { end: 0 }, body, looks)?,
        }
        Ok(())
    }

    fn enclosed(&mut self, open: Instruction, body: &Tree, looks: u32) -> Result<(), Refusal> {
        if looks + 1 >= MAX_DEPTH {
            return refuse("look-around nested this deep");
        }
        let at = self.push(open)?;
        self.tree_at(body, looks + 1)?;
        self.push(Instruction::Match)?;
        let after = self.here();
        match &mut self.instructions[at] {
            Instruction::Look { end, .. } | Instruction::Atomic { end } => *end = after,
            _ => {}
        }
        Ok(())
    }

    fn alternation(&mut self, branches: &[Tree], looks: u32) -> Result<(), Refusal> {
        let mut jumps = Vec::new();
        for (index, branch) in branches.iter().enumerate() {
            if index + 1 == branches.len() {
                self.tree_at(branch, looks)?;
                break;
            }
            let split = self.push(Instruction::Split { first: 0, second: 0 })?;
            let first = self.here();
            self.tree_at(branch, looks)?;
            jumps.push(self.push(Instruction::Jump(0))?);
            let second = self.here();
            self.instructions[split] = Instruction::Split { first, second };
        }
        let end = self.here();
        for jump in jumps {
            self.instructions[jump] = Instruction::Jump(end);
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        body: &Tree,
        min: u32,
        max: u32,
        greed: Greed,
        looks: u32,
    ) -> Result<(), Refusal> {
        // A group around one class is that class.
        let mut inner = body;
        while let Tree::Concat(parts) = inner {
            let [only] = parts.as_slice() else { break };
            inner = only;
        }
        if let Tree::Class(class) = inner {
            let class = self.class(class);
            self.push(Instruction::Run { class, min, max, greed })?;
            return Ok(());
        }
        if greed == Greed::Possessive {
            let greedy =
                Tree::Repeat { body: Box::new(body.clone()), min, max, greed: Greed::Greedy };
            return self.enclosed(Instruction::Atomic { end: 0 }, &greedy, looks);
        }
        let optional = if max == u32::MAX { 0 } else { max - min };
        if min > MAX_COPIES || optional > MAX_COPIES {
            return refuse(format!("a group repeated more than {MAX_COPIES} times"));
        }
        for _ in 0..min {
            let before = self.here();
            self.tree_at(body, looks)?;
            // Copies of nothing, nested, would cost time that no count of steps bounds.
            if self.here() == before {
                break;
            }
        }
        let branch = |into: u32, over: u32| match greed {
            Greed::Lazy => Instruction::Split { first: over, second: into },
            _ => Instruction::Split { first: into, second: over },
        };
        if max == u32::MAX {
            let split = self.push(Instruction::Match)?;
            self.tree_at(body, looks)?;
            self.push(Instruction::Jump(split as u32))?;
            self.instructions[split] = branch(split as u32 + 1, self.here());
            return Ok(());
        }
        let mut splits = Vec::new();
        for _ in 0..optional {
            splits.push(self.push(Instruction::Match)?);
            self.tree_at(body, looks)?;
        }
        let end = self.here();
        for split in splits {
            self.instructions[split] = branch(split as u32 + 1, end);
        }
        Ok(())
    }
}
