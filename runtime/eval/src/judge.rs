//! How answers are scored, from 0 (wrong) to 1 (right).
//!
//! Each rule is the published definition of the benchmark that it comes from, in our own words.
//! Where a published program does something that its paper does not say, the rule here says so.

use std::sync::Arc;

use crate::similarity::{indel_ratio, normal_words, normal_zh, overlap_f1, rouge_l};
use crate::{Error, Program};

/// A rule for scoring an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Judge {
    /// 1 if the first line of the answer, without white space around it and with single spaces
    /// inside, is one of these.
    Line(Vec<String>),
    /// Share of these that occur in the answer, in any case: `string_match_all` of RULER (Hsieh et
    /// al., 2024).
    ContainsAll(Vec<String>),
    /// 1 if one of these occurs in the answer, in any case: `string_match_part` of RULER.
    ContainsAny(Vec<String>),
    /// The best F1 over words against one of these, in lower case, without punctuation and articles:
    /// SQuAD (Rajpurkar et al., 2016), as LongBench and ∞Bench use it.
    WordF1(Vec<String>),
    /// The best F1 over characters against one of these, without punctuation: ∞Bench's rule for
    /// Chinese. LongBench cuts Chinese into words with a dictionary of 5 MB; we do not.
    CharacterF1(Vec<String>),
    /// The best ROUGE-L against one of these (Lin, 2004) over words.
    RougeL(Vec<String>),
    /// The best ROUGE-L over characters, for Chinese.
    CharacterRougeL(Vec<String>),
    /// LongBench: one over the number of class names in the answer if the right one is among them;
    /// a class name that is a part of the right one does not count.
    Class {
        /// The right ones.
        truths: Vec<String>,
        /// All class names.
        classes: Vec<String>,
    },
    /// LongBench: share of the numbers in the answer that are this one.
    Number(String),
    /// LongBench: similarity of the answer's first line that is neither a comment nor a fence, with
    /// one of these: twice the longest common subsequence over both lengths, in whole percent.
    CodeLine(Vec<String>),
    /// The first line that is not empty, judged by another rule: LongBench's few-shot tasks.
    FirstLine(Box<Judge>),
    /// GSM8K (Cobbe et al., 2021): the number behind the last `####`, or else the last number,
    /// equals this one.
    LastNumber(String),
    /// AIME: the integer in the last `\boxed{}`, or else the last integer, equals this one.
    Boxed(u32),
    /// LongBench v2 (Bai et al., 2024): `The correct answer is (A)`, with or without brackets and
    /// stars.
    StatedLetter(char),
    /// ∞Bench (Zhang et al., 2024): the first whole number, digit by digit.
    FirstInteger(String),
    /// ∞Bench: one of the answer's words is this one, in any case, with punctuation as space.
    Word {
        /// Any of these.
        truths: Vec<String>,
        /// Whether capitals count.
        exact_case: bool,
    },
    /// ∞Bench: the last word is this integer.
    FinalInteger(i64),
    /// ∞Bench: the first number with or without decimals equals this one.
    FirstNumber(f64),
    /// ∞Bench: share of this list of integers that the answer begins with, in order.
    Sequence(Vec<u64>),
    /// ∞Bench: the answer begins with this letter, or a phrase like `answer is` leads to it or to
    /// the option's text.
    Option {
        /// The right option's letter.
        letter: char,
        /// The right option's text.
        text: String,
    },
    /// LiveCodeBench: 1 if the program in the answer passes all tests.
    Program(Arc<Program>),
}

impl Judge {
    /// Scores an answer: 0 is wrong, 1 is right.
    ///
    /// # Errors
    ///
    /// [`Error::Sandbox`] where programs are run and cannot be any longer, as when the disk is full.
    pub fn score(&self, answer: &str) -> Result<f64, Error> {
        Ok(match self {
            Judge::Program(program) => yes(program.passes(answer)?),
            Judge::FirstLine(inner) => inner.score(first_line_of(answer))?,
            Judge::Line(truths) => {
                let line = answer.trim_start().lines().next().unwrap_or_default();
                yes(truths.iter().any(|truth| spaced(truth) == spaced(line)))
            }
            Judge::ContainsAll(truths) => {
                occurring(truths, answer) as f64 / truths.len().max(1) as f64
            }
            Judge::ContainsAny(truths) => yes(occurring(truths, answer) > 0),
            Judge::WordF1(truths) => {
                let words = normal_words(answer);
                best(truths, |truth| overlap_f1(&words, &normal_words(truth)))
            }
            Judge::CharacterF1(truths) => {
                let characters = normal_zh(answer);
                best(truths, |truth| overlap_f1(&characters, &normal_zh(truth)))
            }
            Judge::RougeL(truths) => best(truths, |truth| rouge_l(answer, truth)),
            Judge::CharacterRougeL(truths) => {
                best(truths, |truth| rouge_l(&spread(answer), &spread(truth)))
            }
            Judge::Class { truths, classes } => best(truths, |truth| class(answer, truth, classes)),
            Judge::Number(truth) => {
                let numbers: Vec<&str> = integers(answer).collect();
                let right = numbers.iter().filter(|number| *number == truth).count();
                right as f64 / numbers.len().max(1) as f64
            }
            Judge::CodeLine(truths) => {
                let marks = ["`", "#", "//"];
                let code = |line: &&str| !marks.iter().any(|mark| line.contains(mark));
                let mut lines = answer.trim_start_matches('\n').split('\n');
                let line = lines.find(code).unwrap_or_default();
                best(truths, |truth| (100.0 * indel_ratio(line, truth)).round() / 100.0)
            }
            Judge::LastNumber(truth) => {
                let behind = answer.rfind("####").map(|at| &answer[at + 4..]);
                let stated = behind.and_then(|text| numbers(text).into_iter().next());
                let number = stated.or_else(|| numbers(answer).pop());
                yes(number.is_some_and(|number| same_number(&number, truth)))
            }
            Judge::Boxed(truth) => {
                let inside = boxed(answer).and_then(|text| integers(text).last());
                let stated = inside.or_else(|| integers(answer).last());
                yes(stated.and_then(|digits| digits.parse::<u32>().ok()) == Some(*truth))
            }
            Judge::StatedLetter(truth) => yes(stated_letter(answer) == Some(*truth)),
            Judge::FirstInteger(truth) => yes(integers(answer).next() == Some(truth)),
            Judge::Word { truths, exact_case } => {
                let parted = part(answer, "\n:\"'.,?!{}");
                let words: Vec<&str> = parted.split_whitespace().collect();
                yes(truths.iter().any(|truth| {
                    words.iter().any(|word| {
                        if *exact_case {
                            word == truth
                        } else {
                            word.to_uppercase() == truth.to_uppercase()
                        }
                    })
                }))
            }
            Judge::FinalInteger(truth) => {
                let parted = part(answer, "\n.`'\":");
                let last = parted.split_whitespace().last();
                yes(last.and_then(|word| word.parse::<i64>().ok()) == Some(*truth))
            }
            Judge::FirstNumber(truth) => yes(unsigned_numbers(answer).next() == Some(*truth)),
            Judge::Sequence(truth) => {
                let given = integers(answer).map(|digits| digits.parse::<u64>().ok());
                let right = given.zip(truth).take_while(|(given, truth)| *given == Some(**truth));
                right.count() as f64 / truth.len().max(1) as f64
            }
            Judge::Option { letter, text } => yes(names_option(answer, *letter, text)),
        })
    }

    /// Whether the answer has the same score whatever follows it, so that no more of it is needed.
    /// Where a rule's end is not so easily known it is said to be open.
    pub fn is_settled(&self, answer: &str) -> bool {
        match self {
            Judge::FirstLine(_) => answer.trim_start_matches('\n').contains('\n'),
            Judge::Line(_) => answer.trim_start().contains('\n'),
            Judge::ContainsAll(truths) => occurring(truths, answer) == truths.len(),
            Judge::ContainsAny(truths) => occurring(truths, answer) > 0,
            _ => false,
        }
    }
}

/// How many of these occur in a text, in any case.
fn occurring(truths: &[String], text: &str) -> usize {
    let text = lower(text);
    truths.iter().filter(|truth| text.contains(&lower(truth))).count()
}

/// In lower case, letter by letter and with one form of sigma: `to_lowercase` gives it another at the
/// end of a word, and what was found there would be lost when text follows.
fn lower(text: &str) -> String {
    let letters = text.chars().flat_map(char::to_lowercase);
    letters.map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

fn yes(right: bool) -> f64 {
    f64::from(u8::from(right))
}

fn best(truths: &[String], score: impl Fn(&str) -> f64) -> f64 {
    truths.iter().map(|truth| score(truth)).fold(0.0, f64::max)
}

fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A space behind each character, so that characters are words.
fn spread(text: &str) -> String {
    text.chars().flat_map(|character| [character, ' ']).collect()
}

fn first_line_of(answer: &str) -> &str {
    answer.trim_start_matches('\n').split('\n').next().unwrap_or_default()
}

/// Each of these characters becomes a space.
fn part(text: &str, marks: &str) -> String {
    text.chars().map(|c| if marks.contains(c) { ' ' } else { c }).collect()
}

/// Runs of digits.
fn integers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty())
}

/// Runs of digits with one point inside.
fn unsigned_numbers(text: &str) -> impl Iterator<Item = f64> {
    let runs = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    runs.filter_map(|run| {
        let mut parts = run.split('.').skip_while(|part| part.is_empty());
        let whole = parts.next()?;
        match parts.next().filter(|decimals| !decimals.is_empty()) {
            Some(decimals) => format!("{whole}.{decimals}").parse().ok(),
            None => whole.parse().ok(),
        }
    })
}

/// Numbers with sign, thousands in commas and decimals, without the commas and without an empty end.
fn numbers(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let before = at.checked_sub(1).map(|place| bytes[place]);
        let apart = at < 2 || !bytes[at - 2].is_ascii_alphanumeric();
        let negative = before == Some(b'-') && apart;
        let start = at;
        let digit = |place: usize| bytes.get(place).is_some_and(u8::is_ascii_digit);
        while digit(at) || matches!(bytes.get(at), Some(b',' | b'.')) && digit(at + 1) {
            at += 1;
        }
        let sign = if negative { "-" } else { "" };
        found.push(format!("{sign}{}", text[start..at].replace(',', "")));
    }
    found
}

fn same_number(one: &str, other: &str) -> bool {
    let other = other.replace(',', "");
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// What stands in the last `\boxed{}`, with balanced braces.
fn boxed(answer: &str) -> Option<&str> {
    let start = answer.rfind("\\boxed{")? + "\\boxed{".len();
    let mut depth = 1;
    for (at, c) in answer[start..].char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return Some(&answer[start..start + at]);
        }
    }
    None
}

fn stated_letter(answer: &str) -> Option<char> {
    let answer = answer.replace('*', "");
    let phrase = "The correct answer is";
    let at = answer.find(phrase)? + phrase.len();
    let rest = answer[at..].strip_prefix(' ')?;
    let bracket = rest.strip_prefix('(');
    let mut inside = bracket.unwrap_or(rest).chars();
    let letter = inside.next()?;
    let closed = bracket.is_none() || inside.next() == Some(')');
    (('A'..='D').contains(&letter) && closed).then_some(letter)
}

fn class(answer: &str, truth: &str, classes: &[String]) -> f64 {
    let named = classes.iter().filter(|name| answer.contains(name.as_str()));
    let counted: Vec<&String> =
        named.filter(|name| *name == truth || !truth.contains(name.as_str())).collect();
    match counted.iter().any(|name| *name == truth) {
        true => 1.0 / counted.len() as f64,
        false => 0.0,
    }
}

fn names_option(answer: &str, letter: char, text: &str) -> bool {
    let answer = answer.trim_start();
    let mut start = answer.chars();
    if let Some(first) = start.next().filter(|first| ('A'..='D').contains(first))
        && !start.next().is_some_and(char::is_alphanumeric)
    {
        return first == letter;
    }
    let parted = spaced(&part(answer, "\n\"'`*,?!{}()"));
    for phrase in ["answer is:", "answer:", "answer is", "option is:", "option is", "is:"] {
        if let Some(at) = parted.find(phrase) {
            let rest = parted[at + phrase.len()..].trim_start();
            let next = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            return next.len() == 1 && next.starts_with(letter) || rest.starts_with(text);
        }
    }
    let mut words = parted.split([' ', '.', ':']);
    let mut letters = words.by_ref().filter(|word| word.len() == 1 && "ABCD".contains(word));
    letters.next().is_some_and(|word| word.starts_with(letter))
}
