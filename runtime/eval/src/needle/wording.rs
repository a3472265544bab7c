//! The words of statements and questions.
//!
//! `{a}` is what kind of thing the value is, `{k}` the key, `{v}` the value, `{n}` a number.

use super::Own;
use crate::random::Random;

/// Whose words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Style {
    /// RULER's and ∞Bench's.
    Ruler,
    /// Those of the recall model's training, of which each document draws its own.
    Recall,
}

const RECALL_NOUNS: [&str; 8] = [
    "number",
    "special number",
    "magic number",
    "secret code",
    "access code",
    "code",
    "password",
    "serial number",
];

/// Each reads on from the statement's own form, so any question fits any statement.
const RECALL_STATEMENTS: [&str; 8] = [
    "The {a} for {k} is {v}.",
    "The {a} of {k} is {v}.",
    "The {a} for {k} is: {v}.",
    "One of the {a}s for {k} is: {v}.",
    "{k} has the {a} {v}.",
    "Remember that the {a} for {k} is {v}.",
    "{k} -> {v}.",
    "Please remember: {k} = {v}.",
];

const RECALL_QUESTIONS: [&str; 8] = [
    "What is the {a} for {k}? The {a} for {k} is",
    "What is the {a} of {k}? The {a} of {k} is",
    "What is the {a} for {k}? Answer:",
    "Question: what is the {a} of {k}?\nAnswer:",
    "Q: {k}?\nA:",
    "Tell me the {a} for {k}:",
    "Recall {k}. It is",
    "Look up {k}:",
];

const RECALL_SEVERAL: [&str; 3] = [
    "What are the {a}s for {k}? Answer:",
    "Give the {a}s for {k}.\nAnswer:",
    "Which values belong to {k}? They are",
];

const RECALL_ALL: [&str; 3] = [
    "What are all the {a}s for {k}? The {a}s for {k} are",
    "List every {a} for {k}.\nAnswer:",
    "All {a}s for {k}:",
];

const PASS_KEYS: [&str; 8] = [
    "\nWhat is the pass key? The pass key is",
    "\nWhat is the pass key? Answer:",
    "\nThe pass key is",
    "\nWhich pass key did you remember? The pass key is",
    "\nTell me the pass key. The pass key is",
    "\nDo you remember the pass key? Yes, the pass key is",
    "\nQuestion: what is the pass key?\nAnswer: the pass key is",
    "\nNow, what was the pass key? Answer:",
];

/// The words of one task.
pub(super) struct Wording {
    pub(super) style: Style,
    own: Own,
    kind: &'static str,
}

/// The words of one document.
pub(super) struct Choice {
    pub(super) noun: String,
    statement: String,
}

impl Wording {
    pub(super) fn new(style: Style, own: Own, kind: &'static str) -> Wording {
        Wording { style, own, kind }
    }

    pub(super) fn choose(&self, random: &mut Random) -> Choice {
        let (noun, statement) = match self.style {
            Style::Ruler => (self.kind, "One of the special magic {a}s for {k} is: {v}."),
            Style::Recall => (*random.pick(&RECALL_NOUNS), *random.pick(&RECALL_STATEMENTS)),
        };
        let or =
            |own: &Option<String>, else_: &str| own.clone().unwrap_or_else(|| else_.to_owned());
        Choice { noun: or(&self.own.noun, noun), statement: or(&self.own.statement, statement) }
    }

    /// What stands at the beginning of a document whose questions ask for one value, or several.
    pub(super) fn intro(&self, noun: &str, several: bool) -> String {
        match (self.style, several) {
            (Style::Ruler, true) => format!(
                "Some special magic {noun}s are hidden within the following text. Make sure to \
                 memorize it. I will quiz you about the {noun}s afterwards.\n"
            ),
            (Style::Ruler, false) => format!(
                "A special magic {noun} is hidden within the following text. Make sure to \
                 memorize it. I will quiz you about the {noun} afterwards.\n"
            ),
            (Style::Recall, _) => String::new(),
        }
    }

    /// About one value.
    pub(super) fn question(&self, noun: &str, key: &str, random: &mut Random) -> String {
        let known = match self.style {
            Style::Ruler => {
                "What is the special magic {a} for {k} mentioned in the provided text? The special \
                 magic {a} for {k} mentioned in the provided text is"
            }
            Style::Recall => random.pick(&RECALL_QUESTIONS),
        };
        self.fill(known, noun, key)
    }

    /// The same question about one value in different words, so many at most.
    pub(super) fn questions(
        &self,
        noun: &str,
        key: &str,
        most: usize,
        random: &mut Random,
    ) -> Vec<String> {
        if self.variants(most) == 1 {
            return vec![self.question(noun, key, random)];
        }
        let chosen = random.sample(RECALL_QUESTIONS.len(), most);
        chosen.into_iter().map(|index| self.fill(RECALL_QUESTIONS[index], noun, key)).collect()
    }

    /// How many ways there are to ask about one value, up to a number.
    pub(super) fn variants(&self, most: usize) -> usize {
        match self.style {
            Style::Recall if self.own.question.is_none() => most.min(RECALL_QUESTIONS.len()),
            _ => 1,
        }
    }

    /// Ways to ask for a pass key, up to a number.
    pub(super) fn pass_keys(&self, most: usize) -> &'static [&'static str] {
        match self.style {
            Style::Recall => &PASS_KEYS[..most.min(PASS_KEYS.len())],
            Style::Ruler => &PASS_KEYS[..1],
        }
    }

    /// About all values of a key.
    pub(super) fn all_values(&self, noun: &str, key: &str, random: &mut Random) -> String {
        self.plural(&RECALL_ALL, noun, key, random)
    }

    /// About the values of several keys.
    pub(super) fn several(&self, noun: &str, keys: &str, random: &mut Random) -> String {
        self.plural(&RECALL_SEVERAL, noun, keys, random)
    }

    fn plural(
        &self,
        recall: &[&'static str],
        noun: &str,
        key: &str,
        random: &mut Random,
    ) -> String {
        let known = match self.style {
            Style::Ruler => {
                "What are all the special magic {a}s for {k} mentioned in the provided text? The \
                 special magic {a}s for {k} mentioned in the provided text are"
            }
            Style::Recall => random.pick(recall),
        };
        self.fill(known, noun, key)
    }

    fn fill(&self, known: &str, noun: &str, key: &str) -> String {
        let template = self.own.question.as_deref().unwrap_or(known);
        format!("\n{}", template.replace("{a}", noun).replace("{k}", key))
    }
}

impl Choice {
    pub(super) fn state(&self, key: &str, value: &str) -> String {
        let words = self.statement.replace("{a}", &self.noun);
        words.replace("{k}", key).replace("{v}", value)
    }
}
