//! Takes an answer apart as it grows: thoughts, text, calls.
//!
//! What is certain is given out at once. Held back is what may be the beginning of a mark, a call until it
//! is whole (only then is it certain to be one), and white space that may belong to the marks around it.
//! How the text is divided into pieces changes nothing, every byte is looked at a bounded number of times,
//! and what turns out to be no call is text, every byte of it.

use super::calls::Head;
use super::{CallNotation, Notation, ThoughtMarks};
use crate::template::ToolCall;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// What the model thought.
    Thought(String),
    /// What it said.
    Text(String),
    /// A tool that it called.
    Call(ToolCall),
}

/// Takes one answer apart.
#[derive(Clone, Debug)]
pub struct Reader {
    notation: Notation,
    state: State,
    /// Not decided yet.
    held: String,
    /// White space in front of it, which may mean nothing.
    spaces: String,
    /// Whether anything of the thoughts was given out.
    has_thought: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At the beginning, where thoughts may open.
    Start(ThoughtMarks),
    /// Within thoughts.
    Thinking(ThoughtMarks),
    /// In front of the first text or call; white space behind thoughts means nothing.
    Opening { behind_thoughts: bool },
    /// Within text.
    Text,
    /// Behind a mark of so many bytes, where a call's JSON must begin; looked at up to `at`.
    Head { mark: usize, at: usize },
    /// Within the JSON that begins at `start`.
    Json { mark: usize, start: usize, scan: Brackets },
    /// Behind a call.
    Behind,
}

/// Finds where brackets that open close again.
#[derive(Clone, Copy, Debug, Default)]
struct Brackets {
    /// Bytes looked at.
    at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Brackets {
    /// Looks at what is new of `json`; its length, once it is whole.
    fn end(&mut self, json: &str) -> Option<usize> {
        for byte in &json.as_bytes()[self.at..] {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl Reader {
    /// For an answer in this notation, whose prompt has opened thoughts or not.
    pub fn new(notation: Notation, in_thoughts: bool) -> Reader {
        let state = match notation.thoughts {
            Some(marks) if in_thoughts => State::Thinking(marks),
            Some(marks) => State::Start(marks),
            None => State::Opening { behind_thoughts: false },
        };
        Reader { notation, state, held: String::new(), spaces: String::new(), has_thought: false }
    }

    /// Whether what comes next is thought.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thinking(_))
    }

    /// Takes more of the answer and appends what is certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Spoken>) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// The answer ends: what was held back is what it looks like now.
    pub fn finish(&mut self, out: &mut Vec<Spoken>) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Thinking(_) => self.think(&rest, out),
            // An answer of white space is one.
            State::Start(_) | State::Opening { behind_thoughts: false } => self.say(&rest, out),
            _ if rest.is_empty() => {}
            _ => self.say(&rest, out),
        }
        self.spaces.clear();
    }

    /// Takes a step, if what is held allows one.
    fn step(&mut self, out: &mut Vec<Spoken>) -> bool {
        match self.state {
            State::Start(marks) => self.start(marks),
            State::Thinking(marks) => self.go_on_thinking(marks, out),
            State::Opening { behind_thoughts } => self.open(behind_thoughts),
            State::Text => self.go_on_saying(out),
            State::Head { mark, at } => self.look_for_json(mark, at, out),
            State::Json { mark, start, mut scan } => {
                let Some(length) = scan.end(&self.held[start..]) else {
                    self.state = State::Json { mark, start, scan };
                    return false;
                };
                let rest = self.held.split_off(start + length);
                let whole = std::mem::replace(&mut self.held, rest);
                let calls = self.notation.calls.and_then(|notation| {
                    notation.read(&whole[mark..start], &whole[start..], mark == 0)
                });
                match calls {
                    Some(calls) => {
                        self.spaces.clear();
                        out.extend(calls.into_iter().map(Spoken::Call));
                        self.state = State::Behind;
                    }
                    None => {
                        self.say(&whole, out);
                        self.state = State::Text;
                    }
                }
                true
            }
            State::Behind => self.go_on_behind_call(),
        }
    }

    fn start(&mut self, marks: ThoughtMarks) -> bool {
        self.set_spaces_aside(char::is_whitespace);
        if self.held.starts_with(marks.begin) {
            self.held.drain(..marks.begin.len());
            self.spaces.clear();
            self.state = State::Thinking(marks);
            return true;
        }
        if marks.begin.starts_with(self.held.as_str()) {
            return false;
        }
        self.state = State::Opening { behind_thoughts: false };
        true
    }

    fn go_on_thinking(&mut self, marks: ThoughtMarks, out: &mut Vec<Spoken>) -> bool {
        match self.held.find(marks.end) {
            Some(end) => {
                let rest = self.held.split_off(end + marks.end.len());
                let thought = std::mem::replace(&mut self.held, rest);
                self.think(&thought[..end], out);
                self.spaces.clear();
                self.state = State::Opening { behind_thoughts: true };
                true
            }
            None => {
                let thought = self.take_certain(&[marks.end]);
                self.think(&thought, out);
                false
            }
        }
    }

    fn open(&mut self, behind_thoughts: bool) -> bool {
        self.set_spaces_aside(char::is_whitespace);
        if self.held.is_empty() {
            return false;
        }
        if behind_thoughts {
            self.spaces.clear();
        }
        self.state = match self.notation.calls {
            Some(notation) if notation.is_bare() && self.held.starts_with('{') => BARE,
            _ => State::Text,
        };
        true
    }

    fn go_on_saying(&mut self, out: &mut Vec<Spoken>) -> bool {
        let openings = self.notation.calls.map_or(&[][..], CallNotation::openings);
        let found = openings.iter().filter_map(|mark| Some((self.held.find(mark)?, mark.len())));
        match found.min() {
            Some((begin, mark)) => {
                let rest = self.held.split_off(begin);
                let text = std::mem::replace(&mut self.held, rest);
                if !text.is_empty() {
                    self.say(&text, out);
                }
                self.state = State::Head { mark, at: mark };
                true
            }
            None => {
                let text = self.take_certain(openings);
                if !text.is_empty() {
                    self.say(&text, out);
                }
                false
            }
        }
    }

    fn look_for_json(&mut self, mark: usize, mut at: usize, out: &mut Vec<Spoken>) -> bool {
        let Some(notation) = self.notation.calls else { return false };
        while let Some(next) = self.held[at..].chars().next() {
            match notation.head(&self.held[mark..at], next) {
                Head::More => at += next.len_utf8(),
                Head::Json => {
                    self.state = State::Json { mark, start: at, scan: Brackets::default() };
                    return true;
                }
                Head::Bad => {
                    // The mark was none. What follows it, which is short, may have another.
                    let rest = self.held.split_off(mark);
                    let text = std::mem::replace(&mut self.held, rest);
                    self.say(&text, out);
                    self.state = State::Text;
                    return true;
                }
            }
        }
        self.state = State::Head { mark, at };
        false
    }

    fn go_on_behind_call(&mut self) -> bool {
        let Some(notation) = self.notation.calls else { return false };
        self.set_spaces_aside(|character| notation.separates(character));
        if self.held.is_empty() {
            return false;
        }
        let closings = notation.closings();
        if let Some(closing) = closings.iter().find(|mark| self.held.starts_with(**mark)) {
            self.held.drain(..closing.len());
            self.spaces.clear();
            return true;
        }
        if closings.iter().any(|mark| mark.starts_with(self.held.as_str())) {
            return false;
        }
        let is_bare = notation.is_bare() && self.held.starts_with('{');
        self.state = if is_bare { BARE } else { State::Text };
        true
    }

    /// Takes what no beginning of these marks can be part of.
    fn take_certain(&mut self, marks: &[&str]) -> String {
        let held = marks.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held);
        std::mem::replace(&mut self.held, rest)
    }

    fn set_spaces_aside(&mut self, is_space: impl Fn(char) -> bool) {
        let rest = self.held.trim_start_matches(is_space);
        let spaces = self.held.len() - rest.len();
        self.spaces.extend(self.held.drain(..spaces));
    }

    fn say(&mut self, text: &str, out: &mut Vec<Spoken>) {
        if self.spaces.is_empty() && text.is_empty() {
            return;
        }
        match out.last_mut() {
            Some(Spoken::Text(last)) => last.push_str(&self.spaces),
            _ => out.push(Spoken::Text(self.spaces.clone())),
        }
        if let Some(Spoken::Text(last)) = out.last_mut() {
            last.push_str(text);
        }
        self.spaces.clear();
    }

    /// Gives out thoughts without white space at their ends.
    fn think(&mut self, text: &str, out: &mut Vec<Spoken>) {
        let text = if self.has_thought { text } else { text.trim_start() };
        let certain = text.trim_end();
        if !certain.is_empty() {
            self.has_thought = true;
            match out.last_mut() {
                Some(Spoken::Thought(last)) => last.push_str(&self.spaces),
                _ => out.push(Spoken::Thought(self.spaces.clone())),
            }
            if let Some(Spoken::Thought(last)) = out.last_mut() {
                last.push_str(certain);
            }
            self.spaces.clear();
        }
        self.spaces.push_str(&text[certain.len()..]);
    }
}

/// Within JSON that no mark announces.
const BARE: State = State::Json {
    mark: 0,
    start: 0,
    scan: Brackets { at: 0, depth: 0, in_text: false, escaped: false },
};

/// Bytes of the longest end of `text` that `mark` begins with, and that is not all of it.
fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|bytes| text.as_bytes()[text.len() - bytes..] == mark.as_bytes()[..*bytes])
        .unwrap_or(0)
}
