//! From a task's name to its cases.
//!
//! A file is read twice: first every record is parsed, so that what is malformed is told before
//! hours are spent on the rest, and records with the same document are put together; then each case
//! is made when it is wanted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::needle::Needles;
use crate::records::{Record, Records};
use crate::spec::Options;
use crate::{Case, Error, Format, Question, Sandbox, Spec, text};
use crate::{aime, gsm8k, infinitebench, livecodebench, longbench, longbench2, ruler};

/// What cases depend on beside their file and options.
#[derive(Clone, Copy)]
pub struct Setting<'s> {
    /// Tokens of a text.
    pub measure: &'s dyn Fn(&str) -> usize,
    /// Tokens that document, question and answer may have together. Documents that are longer lose
    /// their middle.
    pub context: Option<usize>,
    /// The permission to run programs that a model wrote, if the user gave it.
    pub sandbox: Option<&'s Sandbox>,
}

impl Setting<'_> {
    /// Tokens that a document may have beside each of its questions and their answers; without end
    /// if there is no limit.
    pub(crate) fn room(&self, questions: &[Question]) -> Result<usize, Error> {
        let Some(context) = self.context else { return Ok(usize::MAX) };
        let mut room = context;
        for question in questions {
            let tokens = (self.measure)(&question.text);
            let answer = (self.measure)(&question.begun).saturating_add(question.max_tokens);
            let left = context.checked_sub(tokens.saturating_add(answer)).filter(|left| *left > 0);
            room = room.min(left.ok_or_else(|| Error::NoRoom {
                id: question.id.clone(),
                question: tokens,
                answer,
                context,
            })?);
        }
        Ok(room)
    }
}

/// What one record asks.
pub(crate) struct Item {
    pub(crate) task: String,
    pub(crate) document: String,
    pub(crate) question: Question,
}

/// Makes items of a format's records. Formats give it with the index of the first record to ask.
pub(crate) type Loader = Box<dyn Fn(&Record<'_>) -> Result<Item, Error>>;

/// The cases of a task, one after the other.
pub struct Cases<'s> {
    setting: Setting<'s>,
    source: Source,
    next: usize,
}

enum Source {
    Needles(Box<Needles>),
    File { records: Records, loader: Loader, groups: Vec<Vec<usize>>, max_tokens: Option<usize> },
}

/// Opens a task.
///
/// The file is read and checked as a whole; an error names the file, the line and the field.
pub fn open<'s>(spec: &Spec, setting: Setting<'s>) -> Result<Cases<'s>, Error> {
    let options = Options::of(spec);
    let records = || Records::open(&spec.path);
    let each = |item: fn(&Record<'_>) -> Result<Item, Error>| (0, Box::new(item) as Loader);
    let (records, (first, loader)) = match spec.format {
        Format::Needle => {
            let needles = Needles::open(spec, &options)?;
            options.finish()?;
            return Ok(Cases { setting, source: Source::Needles(Box::new(needles)), next: 0 });
        }
        Format::LongBench => (records()?, each(longbench::item)),
        Format::LongBench2 => (records()?, longbench2::loader(&options)?),
        Format::Ruler => (records()?, ruler::loader(spec, &options)),
        Format::InfiniteBench => (records()?, infinitebench::loader(spec, &options)?),
        Format::Gsm8k => {
            let records = records()?;
            let loader = gsm8k::loader(&records, &options)?;
            (records, loader)
        }
        Format::Aime => (records()?, each(aime::item)),
        Format::LiveCodeBench => {
            let loader = livecodebench::loader(setting.sandbox)?;
            (records()?, loader)
        }
    };
    let limit = options.number("limit", usize::MAX, 1..=usize::MAX)?;
    let max_tokens = match options.text("max_tokens") {
        Some(_) => Some(options.number("max_tokens", 0, 1..=1 << 20)?),
        None => None,
    };
    options.finish()?;
    let last = records.len().min(first.saturating_add(limit));
    let groups = groups(&records, &loader, first..last)?;
    if groups.is_empty() {
        let reason = "no records beside the worked examples".to_owned();
        return Err(Error::Nothing { path: spec.path.clone(), reason });
    }
    let source = Source::File { records, loader, groups, max_tokens };
    Ok(Cases { setting, source, next: 0 })
}

/// Reads a task's file and options as [`open`] does and keeps nothing, to tell what is wrong with them before
/// there is a model. `runs_programs` says whether the user allows it.
pub fn check(spec: &Spec, runs_programs: bool) -> Result<(), Error> {
    // Programs are run and texts are measured when cases are made, which none are.
    let (idle, measure) = (Sandbox::idle(), |_: &str| 0);
    let sandbox = runs_programs.then_some(&idle);
    open(spec, Setting { measure: &measure, context: None, sandbox }).map(drop)
}

/// Records with the same task and document, in the order of their first.
fn groups(
    records: &Records,
    loader: &Loader,
    range: std::ops::Range<usize>,
) -> Result<Vec<Vec<usize>>, Error> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<(u64, usize), usize> = HashMap::new();
    for index in range {
        let item = loader(&records.get(index)?)?;
        let mut hasher = DefaultHasher::new();
        (&item.task, &item.document).hash(&mut hasher);
        let group = *known.entry((hasher.finish(), item.document.len())).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    Ok(groups)
}

impl Cases<'_> {
    /// Documents of the whole task.
    pub fn documents(&self) -> usize {
        match &self.source {
            Source::Needles(needles) => needles.documents(),
            Source::File { groups, .. } => groups.len(),
        }
    }

    /// Questions of the whole task.
    pub fn questions(&self) -> usize {
        match &self.source {
            Source::Needles(needles) => needles.questions(),
            Source::File { groups, .. } => groups.iter().map(Vec::len).sum(),
        }
    }

    fn case(&self, index: usize) -> Result<Case, Error> {
        let (records, loader, group, max_tokens) = match &self.source {
            Source::Needles(needles) => return needles.case(index, &self.setting),
            Source::File { records, loader, groups, max_tokens } => {
                (records, loader, &groups[index], *max_tokens)
            }
        };
        let mut case = Case { task: String::new(), document: String::new(), questions: Vec::new() };
        for index in group {
            let mut item = loader(&records.get(*index)?)?;
            item.question.max_tokens = max_tokens.unwrap_or(item.question.max_tokens);
            case.questions.push(item.question);
            (case.task, case.document) = (item.task, item.document);
        }
        self.fit(&mut case)?;
        Ok(case)
    }

    /// Cuts the middle out of a document that is too long, so that what stands in front of it and
    /// behind it, the longest question among that, keeps as much as each other.
    fn fit(&self, case: &mut Case) -> Result<(), Error> {
        let room = self.setting.room(&case.questions)?;
        let measure = self.setting.measure;
        if room == usize::MAX || measure(&case.document) <= room {
            return Ok(());
        }
        let asked = case.questions.iter().map(|question| measure(&question.text)).max();
        let front = ((room + asked.unwrap_or(0)) / 2).min(room);
        case.document = text::cut_middle(&case.document, front, room - front, measure);
        Ok(())
    }
}

impl Iterator for Cases<'_> {
    type Item = Result<Case, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.documents() {
            return None;
        }
        self.next += 1;
        Some(self.case(self.next - 1))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.documents() - self.next;
        (left, Some(left))
    }
}
