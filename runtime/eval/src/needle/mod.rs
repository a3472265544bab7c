//! Synthetic tasks: facts hidden at random places of any text, and questions about them.
//!
//! Families and wordings are those of RULER (Hsieh et al., *RULER: what's the real context size of
//! your long-context language models?*, 2024) and ∞Bench's dictionary (Zhang et al., 2024) or, with
//! `wording=recall`, of the texts that the repository's recall model is trained on
//! (`tools/recall/data.py`). A document and its questions depend on the text, the options, the seed
//! and the measure of length, on nothing else.

mod family;
mod things;
mod wording;

pub(crate) use family::Family;
use family::{Plan, Planned};
use things::{Kind, Things};
use wording::{Style, Wording};

use crate::random::Random;
use crate::spec::Options;
use crate::{Case, Error, Setting, Spec, text};

/// Facts in a document at most.
const MOST: usize = 100_000;

/// A statement or a question in words of the user's.
struct Own {
    statement: Option<String>,
    question: Option<String>,
    noun: Option<String>,
}

/// How answers are compared.
#[derive(Clone, Copy, PartialEq)]
enum Match {
    /// The first line is the answer and nothing else.
    Line,
    /// Everything asked for occurs.
    Contains,
}

/// All that the documents of a task have in common.
pub(crate) struct Needles {
    families: Vec<Family>,
    documents: usize,
    length: usize,
    questions: usize,
    needles: Option<usize>,
    density: Option<usize>,
    hops: usize,
    seed: u64,
    max_tokens: Option<usize>,
    thought: Option<usize>,
    /// Instead of what is the family's.
    comparison: Option<Match>,
    wording: Wording,
    sentences: Vec<String>,
    things: Things,
}

impl Needles {
    pub(crate) fn open(spec: &Spec, options: &Options<'_>) -> Result<Needles, Error> {
        let style = options.choice(
            "wording",
            Style::Ruler,
            &[("ruler", Style::Ruler), ("recall", Style::Recall)],
        )?;
        let own = Own {
            statement: template(options, "statement", &["{k}", "{v}"])?,
            question: template(options, "question", &["{k}"])?,
            noun: options.text("noun").map(str::to_owned),
        };
        let comparison = options.choice(
            "match",
            None,
            &[("line", Some(Match::Line)), ("contains", Some(Match::Contains))],
        )?;
        let kind = |name, default| options.choice(name, default, Kind::NAMES);
        // RULER's keys are two words with a hyphen and its numbers have seven digits, too many to occur
        // in another one by chance.
        let (keys, digits) = match style {
            Style::Ruler => (Kind::Pair, (7, 7)),
            Style::Recall => (Kind::Word, (3, 7)),
        };
        let (key, value) = (kind("key", keys)?, kind("value", Kind::Number)?);
        let optional = |name| match options.text(name) {
            Some(_) => options.number(name, 0, 1..=MOST).map(Some),
            None => Ok(None),
        };
        let density = match options.text("density") {
            Some(_) => Some(options.number("density", 0, 1..=90)?),
            None => None,
        };
        if density.is_some() && options.text("needles").is_some() {
            return Err(options.wrong("needles and density exclude each other".into()));
        }
        let content = text::read(&spec.path)?;
        let sentences = text::sentences(&content);
        if sentences.is_empty() {
            let reason = "a text to hide needles in needs a sentence".to_owned();
            return Err(Error::Nothing { path: spec.path.clone(), reason });
        }
        Ok(Needles {
            families: options.choices("families", Family::NAMES)?,
            documents: options.number("documents", 10, 1..=MOST)?,
            length: options.number("length", 4096, 64..=1 << 24)?,
            questions: options.number("questions", 4, 1..=1000)?,
            needles: optional("needles")?,
            density,
            hops: options.number("hops", if style == Style::Ruler { 4 } else { 2 }, 1..=25)?,
            seed: options.number("seed", 1, 0..=usize::MAX)? as u64,
            max_tokens: optional("max_tokens")?,
            thought: optional("thought")?,
            comparison,
            wording: Wording::new(style, own, value.noun()),
            sentences,
            things: Things::new(text::words(&content), key, value, digits),
        })
    }

    /// Documents of all families together.
    pub(crate) fn documents(&self) -> usize {
        self.families.len() * self.documents
    }

    /// Questions of all documents together.
    pub(crate) fn questions(&self) -> usize {
        let each =
            self.families.iter().map(|family| family.questions(self.questions, &self.wording));
        each.sum::<usize>() * self.documents
    }

    /// The families follow each other document by document, so that a run that is broken off has
    /// seen all of them.
    pub(crate) fn case(&self, index: usize, setting: &Setting<'_>) -> Result<Case, Error> {
        let family = self.families[index % self.families.len()];
        let number = index / self.families.len();
        // A family's documents do not change when other families are asked for.
        let stream = (family as u64) << 32 | number as u64;
        let (mut random, mut plan) = self.plan(family, stream, self.needles);
        if let Some(percent) = self.density {
            let needles = self.needles_for(percent, &plan, setting);
            (random, plan) = self.plan(family, stream, Some(needles));
        }
        let mut questions = plan.questions;
        for (place, question) in questions.iter_mut().enumerate() {
            question.id = format!("{}-{number}-{place}", family.name());
            question.max_tokens = self.max_tokens.unwrap_or(question.max_tokens);
        }
        if let Some(tokens) = self.thought {
            let thought = self.think(tokens, stream, setting.measure);
            for question in &mut questions {
                question.begun = format!("{thought}{}", question.text);
            }
        }
        let room = self.length.min(setting.room(&questions)?);
        let document = self
            .write(&plan.intro, &plan.statements, room, &mut random, setting.measure)
            .map_err(|needed| Error::Overfull { task: family.name().to_owned(), needed, room })?;
        Ok(Case { task: family.name().to_owned(), document, questions })
    }

    fn plan(&self, family: Family, stream: u64, needles: Option<usize>) -> (Random, Planned) {
        let mut random = Random::new(self.seed, stream);
        let planned = family.plan(&mut Plan {
            random: &mut random,
            things: &mut self.things.fresh(),
            wording: &self.wording,
            sentences: &self.sentences,
            questions: self.questions,
            needles,
            hops: self.hops,
            comparison: self.comparison.unwrap_or(family.comparison(self.wording.style)),
        });
        (random, planned)
    }

    /// Sentences of the text that stand between a question and its repetition: at most so many tokens.
    fn think(&self, tokens: usize, stream: u64, measure: &dyn Fn(&str) -> usize) -> String {
        // The document is the same without it.
        let mut random = Random::new(self.seed, 1 << 63 | stream);
        let mut thought = String::new();
        for sentence in self.filler(tokens, &mut random, measure) {
            thought.push(' ');
            thought.push_str(sentence);
        }
        self.end(&mut thought);
        thought
    }

    /// Sentences from a random one on, as many as fit.
    fn filler(
        &self,
        room: usize,
        random: &mut Random,
        measure: &dyn Fn(&str) -> usize,
    ) -> Vec<&str> {
        let start = random.below(self.sentences.len());
        let mut length: usize = 0;
        let fits = |sentence: &&String| {
            length = length.saturating_add(spaced(sentence, measure));
            length <= room
        };
        let sentences = self.sentences.iter().cycle().skip(start);
        sentences.take_while(fits).map(String::as_str).collect()
    }

    /// Facts whose statements fill so many percent of a document, judged by a plan that has as many
    /// facts as its questions need. (Of families whose facts differ in length it is an estimate.)
    fn needles_for(&self, percent: usize, plan: &Planned, setting: &Setting<'_>) -> usize {
        let tokens: usize = plan.statements.iter().map(|text| (setting.measure)(text)).sum();
        let length = setting.context.map_or(self.length, |context| context.min(self.length));
        let wanted = length * percent / 100;
        (wanted * plan.facts / tokens.max(1)).max(1)
    }

    /// Filler with the statements at random places in their order, as long as fits; its tokens if
    /// it does not fit even without filler.
    fn write(
        &self,
        intro: &str,
        statements: &[String],
        room: usize,
        random: &mut Random,
        measure: &dyn Fn(&str) -> usize,
    ) -> Result<String, usize> {
        let stated = statements.iter().map(|text| spaced(text, measure)).sum::<usize>();
        let left = room.saturating_sub(measure(intro) + stated);
        let mut filler = self.filler(left, random, measure);
        let mut places: Vec<f64> =
            statements.iter().map(|_| random.below(1 << 30) as f64 / f64::from(1 << 30)).collect();
        places.sort_by(f64::total_cmp);
        // Pieces were measured apart; the whole may have a few tokens more.
        loop {
            let document = self.join(intro, statements, &places, &filler);
            let length = measure(&document);
            if length <= room {
                return Ok(document);
            }
            if filler.is_empty() {
                return Err(length);
            }
            let excess = length - room;
            let mut less = 0;
            while less < excess {
                match filler.pop() {
                    Some(sentence) => less += spaced(sentence, measure),
                    None => break,
                }
            }
        }
    }

    fn join(&self, intro: &str, statements: &[String], places: &[f64], filler: &[&str]) -> String {
        let mut document = intro.to_owned();
        let mut pending = statements.iter().zip(places).peekable();
        for index in 0..=filler.len() {
            while let Some((statement, _)) = pending
                .next_if(|(_, place)| (**place * (filler.len() + 1) as f64) as usize <= index)
            {
                append(&mut document, statement);
            }
            if let Some(sentence) = filler.get(index) {
                append(&mut document, sentence);
            }
        }
        self.end(&mut document);
        document
    }

    /// The recall model's questions stand behind a blank line.
    fn end(&self, text: &mut String) {
        if self.wording.style == Style::Recall {
            text.push('\n');
        }
    }
}

/// Tokens of a piece behind others: they hold the space in front of a word.
fn spaced(piece: &str, measure: &dyn Fn(&str) -> usize) -> usize {
    measure(&format!(" {piece}")).max(1)
}

/// Separates by a space where there is no line break.
fn append(document: &mut String, piece: &str) {
    if !document.is_empty() && !document.ends_with('\n') && !piece.starts_with('\n') {
        document.push(' ');
    }
    document.push_str(piece);
}

/// An option that is a wording, with the places that it must have.
fn template(
    options: &Options<'_>,
    name: &'static str,
    places: &[&str],
) -> Result<Option<String>, Error> {
    let Some(text) = options.text(name) else { return Ok(None) };
    match places.iter().find(|place| !text.contains(**place)) {
        Some(place) => Err(options.wrong(format!("{name} has no {place}"))),
        None => Ok(Some(text.to_owned())),
    }
}
