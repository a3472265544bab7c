//! The families: which facts a document holds and what is asked about them.

use super::Match;
use super::things::Unused;
use super::wording::{Choice, Style, Wording};
use crate::random::Random;
use crate::{Judge, Question};

/// A kind of task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Family {
    /// One needle in filler.
    Single,
    /// Many needles with different keys; each question asks for one.
    MultiKey,
    /// Keys with several values in separate places.
    MultiValue,
    /// Questions that ask for several keys.
    MultiQuery,
    /// A pass key.
    PassKey,
    /// Blocks of keys and values.
    Dictionary,
    /// Variables that are assigned to each other.
    Trace,
    /// How often something is said.
    Count,
    /// A passage, word by word.
    Copy,
}

/// What planning needs.
pub(super) struct Plan<'p, 't> {
    pub(super) random: &'p mut Random,
    pub(super) things: &'p mut Unused<'t>,
    pub(super) wording: &'p Wording,
    pub(super) sentences: &'p [String],
    pub(super) questions: usize,
    pub(super) needles: Option<usize>,
    pub(super) hops: usize,
    pub(super) comparison: Match,
}

/// A document without its filler.
#[derive(Default)]
pub(super) struct Planned {
    /// Facts: keys, chains or passages.
    pub(super) facts: usize,
    pub(super) intro: String,
    pub(super) statements: Vec<String>,
    pub(super) questions: Vec<Question>,
}

/// Pairs of a dictionary that stand together.
const BLOCK: usize = 8;

impl Family {
    pub(crate) const NAMES: &[(&str, Family)] = &[
        ("single", Family::Single),
        ("multikey", Family::MultiKey),
        ("multivalue", Family::MultiValue),
        ("multiquery", Family::MultiQuery),
        ("passkey", Family::PassKey),
        ("dictionary", Family::Dictionary),
        ("trace", Family::Trace),
        ("count", Family::Count),
        ("copy", Family::Copy),
    ];

    pub(crate) fn name(self) -> &'static str {
        Family::NAMES.iter().find(|(_, family)| *family == self).map_or("", |(name, _)| name)
    }

    /// Questions of a document for which so many are wanted: where there is one fact it is asked
    /// for in as many ways as there are.
    pub(super) fn questions(self, wanted: usize, wording: &Wording) -> usize {
        match self {
            Family::Single => wording.variants(wanted),
            Family::PassKey => wording.pass_keys(wanted).len(),
            _ => wanted,
        }
    }

    /// How answers are compared. The recall model lists values in sentences, in any order.
    pub(super) fn comparison(self, style: Style) -> Match {
        match (style, self) {
            (Style::Ruler, _) | (Style::Recall, Family::MultiValue) => Match::Contains,
            (Style::Recall, _) => Match::Line,
        }
    }

    pub(super) fn plan(self, cx: &mut Plan<'_, '_>) -> Planned {
        let choice = cx.wording.choose(cx.random);
        match self {
            Family::Single => single(cx, &choice),
            Family::MultiKey => {
                let needles = cx.needles.unwrap_or(cx.questions).max(cx.questions).max(4);
                pairs(cx, &choice, needles, cx.questions)
            }
            Family::MultiValue => multi_value(cx, &choice),
            Family::MultiQuery => multi_query(cx, &choice),
            Family::PassKey => pass_key(cx),
            Family::Dictionary => dictionary(cx),
            Family::Trace => trace(cx),
            Family::Count => count(cx),
            Family::Copy => copy(cx),
        }
    }
}

impl Plan<'_, '_> {
    /// A question whose answer is these values, which the recall model writes in this form.
    fn ask(&self, text: String, values: &[String], line: String, tokens: usize) -> Question {
        let judge = match self.comparison {
            Match::Line => Judge::Line(vec![line]),
            Match::Contains => Judge::ContainsAll(values.to_vec()),
        };
        self.judged(text, judge, tokens)
    }

    /// The recall model's answers are lines. RULER lets models write on; what follows a line break
    /// is part of its published score.
    fn judged(&self, text: String, judge: Judge, max_tokens: usize) -> Question {
        let stop = match self.wording.style {
            Style::Recall => vec!["\n".to_owned()],
            Style::Ruler => Vec::new(),
        };
        Question { id: String::new(), text, begun: String::new(), judge, max_tokens, stop }
    }
}

/// One value, asked for in different words.
fn single(cx: &mut Plan<'_, '_>, choice: &Choice) -> Planned {
    let (key, value) = (cx.things.key(cx.random), cx.things.value(cx.random));
    let texts = cx.wording.questions(&choice.noun, &key, cx.questions, cx.random);
    let ask = |text| cx.ask(text, std::slice::from_ref(&value), value.clone(), 128);
    Planned {
        facts: 1,
        intro: cx.wording.intro(&choice.noun, false),
        statements: vec![choice.state(&key, &value)],
        questions: texts.into_iter().map(ask).collect(),
    }
}

/// One value a key.
fn pairs(cx: &mut Plan<'_, '_>, choice: &Choice, needles: usize, questions: usize) -> Planned {
    let facts: Vec<(String, String)> =
        (0..needles).map(|_| (cx.things.key(cx.random), cx.things.value(cx.random))).collect();
    let mut planned = Planned {
        facts: needles,
        intro: cx.wording.intro(&choice.noun, false),
        ..Planned::default()
    };
    planned.statements = facts.iter().map(|(key, value)| choice.state(key, value)).collect();
    for index in cx.random.sample(needles, questions) {
        let (key, value) = &facts[index];
        let text = cx.wording.question(&choice.noun, key, cx.random);
        planned.questions.push(cx.ask(text, std::slice::from_ref(value), value.clone(), 128));
    }
    planned
}

/// Two to four values a key, each stated in a place of its own.
fn multi_value(cx: &mut Plan<'_, '_>, choice: &Choice) -> Planned {
    let keys = cx.needles.unwrap_or(cx.questions).max(cx.questions);
    let facts: Vec<(String, Vec<String>)> = (0..keys)
        .map(|_| {
            let count = cx.random.within(2, 4);
            let key = cx.things.key(cx.random);
            (key, (0..count).map(|_| cx.things.value(cx.random)).collect())
        })
        .collect();
    let mut planned =
        Planned { facts: keys, intro: cx.wording.intro(&choice.noun, true), ..Planned::default() };
    // Mixed with each other; the values of a key keep their order, in which they are listed.
    let mut order: Vec<usize> =
        facts.iter().enumerate().flat_map(|(key, (_, values))| vec![key; values.len()]).collect();
    let shuffled = cx.random.sample(order.len(), order.len());
    order = shuffled.into_iter().map(|place| order[place]).collect();
    let mut next = vec![0; facts.len()];
    for key in order {
        planned.statements.push(choice.state(&facts[key].0, &facts[key].1[next[key]]));
        next[key] += 1;
    }
    for index in cx.random.sample(keys, cx.questions) {
        let (key, values) = &facts[index];
        let text = cx.wording.all_values(&choice.noun, key, cx.random);
        planned.questions.push(cx.ask(text, values, values.join(", "), 128));
    }
    planned
}

/// Two to four keys in one question.
fn multi_query(cx: &mut Plan<'_, '_>, choice: &Choice) -> Planned {
    let needles = cx.needles.unwrap_or(2 * cx.questions).max(4);
    let facts: Vec<(String, String)> =
        (0..needles).map(|_| (cx.things.key(cx.random), cx.things.value(cx.random))).collect();
    let mut planned = Planned {
        facts: needles,
        intro: cx.wording.intro(&choice.noun, true),
        ..Planned::default()
    };
    planned.statements = facts.iter().map(|(key, value)| choice.state(key, value)).collect();
    for _ in 0..cx.questions {
        let count = cx.random.within(2, 4);
        let asked = cx.random.sample(needles, count);
        let asked: Vec<&(String, String)> = asked.into_iter().map(|index| &facts[index]).collect();
        let keys: Vec<&str> = asked.iter().map(|(key, _)| key.as_str()).collect();
        let (last, first) = keys.split_last().unwrap_or((&"", &[]));
        // RULER lists with a comma in front of `and`, the recall model's training without.
        let comma = if cx.wording.style == Style::Ruler { "," } else { "" };
        let listed = format!("{}{comma} and {last}", first.join(", "));
        let text = cx.wording.several(&choice.noun, &listed, cx.random);
        let values: Vec<String> = asked.iter().map(|(_, value)| value.clone()).collect();
        let line: Vec<String> =
            asked.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        planned.questions.push(cx.ask(text, &values, line.join("; "), 128));
    }
    planned
}

fn pass_key(cx: &mut Plan<'_, '_>) -> Planned {
    // ∞Bench's keys have five digits.
    let (low, high) = if cx.wording.style == Style::Ruler { (5, 5) } else { (4, 7) };
    let value = cx.things.number(low, high, cx.random);
    let intro = match cx.wording.style {
        Style::Ruler => {
            "There is an important info hidden inside a lot of irrelevant text. Find it and \
             memorize it. I will quiz you about the important information there.\n\n"
        }
        Style::Recall => "",
    };
    let texts = cx.wording.pass_keys(cx.questions).iter().map(|text| (*text).to_owned());
    let ask = |text| cx.ask(text, std::slice::from_ref(&value), value.clone(), 16);
    Planned {
        facts: 1,
        intro: intro.to_owned(),
        statements: vec![format!("The pass key is {value}. Remember it. {value} is the pass key.")],
        questions: texts.map(ask).collect(),
    }
}

/// Blocks of pairs: lines of JSON as in ∞Bench's retrieval of values, or lines with a colon.
fn dictionary(cx: &mut Plan<'_, '_>) -> Planned {
    let needles = cx.needles.unwrap_or(4 * cx.questions).max(cx.questions);
    let facts: Vec<(String, String)> =
        (0..needles).map(|_| (cx.things.key(cx.random), cx.things.value(cx.random))).collect();
    let ruler = cx.wording.style == Style::Ruler;
    let mut planned = Planned { facts: needles, ..Planned::default() };
    if ruler {
        planned.intro = "Extract the value corresponding to the specified key in the JSON objects \
                         below.\n\n"
            .into();
    }
    for block in facts.chunks(BLOCK) {
        let row = |(key, value): &(String, String)| match ruler {
            true => format!("\"{key}\": \"{value}\""),
            false => format!("{key}: {value}"),
        };
        let rows: Vec<String> = block.iter().map(row).collect();
        planned.statements.push(match ruler {
            true => format!("\n{{{}}}\n", rows.join(", ")),
            false => format!("\n{}\n", rows.join("\n")),
        });
    }
    for index in cx.random.sample(needles, cx.questions) {
        let (key, value) = &facts[index];
        let text = match ruler {
            true => format!("\nKey: \"{key}\"\nThe value associated with the specified key is:"),
            false => format!("\nValue of {key}:"),
        };
        planned.questions.push(cx.ask(text, std::slice::from_ref(value), value.clone(), 50));
    }
    planned
}

/// Chains of assignments. RULER asks for all variables of a value, the recall model is asked to
/// follow one variable back.
fn trace(cx: &mut Plan<'_, '_>) -> Planned {
    let ruler = cx.wording.style == Style::Ruler;
    let chains = cx.needles.unwrap_or(cx.questions).max(cx.questions);
    let mut planned = Planned { facts: chains, ..Planned::default() };
    if ruler {
        planned.intro = "Memorize and track the chain(s) of variable assignment hidden in the \
                         following text.\n\n"
            .into();
    }
    let mut asked = Vec::new();
    let mut steps = Vec::new();
    for chain in 0..chains {
        let letters = if ruler { 5 } else { 3 };
        let names: Vec<String> =
            (0..=cx.hops).map(|_| cx.things.variable(letters, cx.random)).collect();
        let value =
            cx.things.number(if ruler { 5 } else { 3 }, if ruler { 5 } else { 6 }, cx.random);
        let head = if ruler { "VAR " } else { "" };
        let mut line = value.clone();
        let mut statements = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let from = match index {
                0 => value.clone(),
                _ => format!("{head}{}", names[index - 1]),
            };
            statements.push(format!("{head}{name} = {from}."));
            line = format!("{name} = {line}");
        }
        steps.push(statements);
        asked.push((chain, names, value, line));
    }
    // Chains are mixed, and each is told in its order.
    let mut order: Vec<usize> = (0..chains).flat_map(|chain| vec![chain; cx.hops + 1]).collect();
    let shuffled = cx.random.sample(order.len(), order.len());
    order = shuffled.into_iter().map(|place| order[place]).collect();
    let mut next = vec![0; chains];
    for chain in order {
        planned.statements.push(steps[chain][next[chain]].clone());
        next[chain] += 1;
    }
    for index in cx.random.sample(chains, cx.questions) {
        let (_, names, value, line) = &asked[index];
        let text = match (ruler, names.last()) {
            (false, Some(last)) => format!("\nTrace {last}:"),
            _ => format!(
                "\nQuestion: Find all variables that are assigned the value {value} in the text \
                 above. Answer: According to the chain(s) of variable assignment in the text \
                 above, {} variables are assigned the value {value}, they are:",
                names.len()
            ),
        };
        planned.questions.push(cx.ask(text, names, line.clone(), 30.max(12 * names.len())));
    }
    planned
}

/// The same sentence some times, each time in another place.
fn count(cx: &mut Plan<'_, '_>) -> Planned {
    let names = cx.needles.unwrap_or(cx.questions).max(cx.questions);
    let mut planned = Planned { facts: names, ..Planned::default() };
    let facts: Vec<(String, usize)> =
        (0..names).map(|_| (cx.things.key(cx.random), cx.random.within(1, 9))).collect();
    let all: Vec<&String> =
        facts.iter().flat_map(|(key, times)| std::iter::repeat_n(key, *times)).collect();
    for place in cx.random.sample(all.len(), all.len()) {
        planned.statements.push(format!("The bell of {} rang once.", all[place]));
    }
    for index in cx.random.sample(names, cx.questions) {
        let (key, times) = &facts[index];
        let text = format!("\nHow many times did the bell of {key} ring? Answer:");
        planned.questions.push(cx.judged(text, Judge::FirstInteger(times.to_string()), 16));
    }
    planned
}

/// Passages of the text itself, quoted under a name.
fn copy(cx: &mut Plan<'_, '_>) -> Planned {
    let passages = cx.needles.unwrap_or(cx.questions).max(cx.questions);
    let mut planned = Planned { facts: passages, ..Planned::default() };
    let facts: Vec<(String, String)> = (0..passages)
        .map(|_| {
            let wanted = cx.random.within(12, 40);
            let start = cx.random.below(cx.sentences.len());
            let words = cx.sentences.iter().cycle().skip(start).flat_map(|s| s.split_whitespace());
            let bare = words.map(|word| word.replace('"', "")).filter(|word| !word.is_empty());
            let passage: Vec<String> = bare.take(wanted).collect();
            (cx.things.key(cx.random), passage.join(" "))
        })
        .collect();
    planned.statements =
        facts.iter().map(|(key, passage)| format!("Passage {key}: \"{passage}\"")).collect();
    for index in cx.random.sample(passages, cx.questions) {
        let (key, passage) = &facts[index];
        let line = format!("\"{passage}\"");
        let text = format!("\nRepeat passage {key}:");
        planned.questions.push(cx.ask(text, std::slice::from_ref(passage), line, 160));
    }
    planned
}
