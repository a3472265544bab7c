//! The text that chooses formats: `int4`, `int4,block=64,zeros`, `int4,head=int8,block=channel`,
//! `head=int8` (everything else as in the file).
//!
//! A format without a group is that of every group that has none of its own. `block=`, `symmetric`
//! and `zeros` concern the format in front of them.

use std::fmt;

use weir_ir::{DType, Element, QuantFormat, ZeroPoints};

/// Codes that share a scale unless the user says otherwise.
const DEFAULT_BLOCK: u32 = 32;

/// Blocks that a user can choose, beside whole channels.
const BLOCKS: [u32; 3] = [32, 64, 128];

/// A block of a whole channel is rounded up to a multiple of this, the size that kernels like.
const CHANNEL_STEP: u32 = 128;

/// Weights that can have a format of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The table of token embeddings. Where it is the head's weight too, it counts as `Head`.
    Embedding,
    /// The weight that gives the logits.
    Head,
    /// Every other weight of a product.
    Layers,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 3] = [Group::Embedding, Group::Head, Group::Layers];

    /// Name in the option.
    pub fn name(self) -> &'static str {
        match self {
            Group::Embedding => "embedding",
            Group::Head => "head",
            Group::Layers => "layers",
        }
    }
}

/// A format that the user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// What the file has.
    File,
    /// Plain floats.
    Float(DType),
    /// Codes of this many bits.
    Int(u8),
}

const BASES: [(&str, Base); 6] = [
    ("int4", Base::Int(4)),
    ("int8", Base::Int(8)),
    ("bf16", Base::Float(DType::BF16)),
    ("f16", Base::Float(DType::F16)),
    ("f32", Base::Float(DType::F32)),
    ("file", Base::File),
];

/// Length of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Length(u32),
    Channel,
}

/// A format with its options; an absent option was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    base: Base,
    block: Option<Block>,
    zeros: Option<bool>,
}

/// What is to happen to a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stays as it is.
    Keep,
    /// It gets this type.
    Round(Element),
    /// It is quantised already, in another way than the user wants.
    Conflict,
}

/// Formats of the groups. The default keeps every weight as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightChoice {
    all: Option<Wanted>,
    own: [Option<Wanted>; Group::ALL.len()],
    /// Type of the scales of codes that are made.
    scale: DType,
}

impl Default for WeightChoice {
    fn default() -> Self {
        WeightChoice { all: None, own: [None; Group::ALL.len()], scale: DType::F16 }
    }
}

/// Why formats cannot be had: the user's options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// Not a format.
    #[error("unknown format \"{0}\"; there are {known}", known = names())]
    Format(String),
    /// Not a group.
    #[error(
        "unknown part \"{0}\" of a model; there are embedding, head, layers, and block= for int4 and int8"
    )]
    Group(String),
    /// A group has two formats.
    #[error("the format of {0} is given twice")]
    Twice(&'static str),
    /// An option stands where it concerns nothing.
    #[error("\"{0}\" belongs behind int4 or int8, as in int4,{0}")]
    Misplaced(String),
    /// A block of a length that is not offered.
    #[error("\"block\" takes 32, 64, 128 or channel, not \"{0}\"")]
    Block(String),
    /// A tied table has two formats.
    #[error(
        "embedding={embedding} and head={head} are one table in this model; give head= alone, which \
         decides"
    )]
    Tied {
        /// Format of the embedding.
        embedding: String,
        /// Format of the head.
        head: String,
    },
    /// A weight of the file is quantised in another way.
    #[error(
        "{wanted} for {group}: {name:?} is {found} in the file already, and codes are not rounded \
         again; {group}=file leaves it as it is"
    )]
    Quantised {
        /// What was asked for.
        wanted: String,
        /// The group.
        group: &'static str,
        /// The first such weight.
        name: String,
        /// Its format.
        found: String,
    },
}

fn names() -> String {
    BASES.map(|(name, _)| name).join(", ")
}

impl WeightChoice {
    /// Reads the text of `--weights`.
    pub fn parse(text: &str) -> Result<WeightChoice, WeightsError> {
        let mut choice = WeightChoice::default();
        // Where the last format was put: of all groups, or of one.
        let mut last: Option<Option<Group>> = None;
        for part in text.split(',').map(str::trim) {
            let misplaced = || WeightsError::Misplaced(part.to_owned());
            let (name, value) = part.split_once('=').map_or((part, None), |(n, v)| (n, Some(v)));
            match (name, value) {
                ("block" | "symmetric" | "zeros", _) => {
                    let wanted = last.and_then(|group| choice.slot(group).as_mut());
                    let wanted = wanted.filter(|wanted| matches!(wanted.base, Base::Int(_)));
                    let wanted = wanted.ok_or_else(misplaced)?;
                    let is_new = match (name, value) {
                        ("block", value) => wanted.block.replace(block(value)?).is_none(),
                        (_, None) => wanted.zeros.replace(name == "zeros").is_none(),
                        _ => return Err(misplaced()),
                    };
                    if !is_new {
                        let twice = if name == "block" { "blocks" } else { "zero points" };
                        return Err(WeightsError::Twice(twice));
                    }
                }
                (format, None) => {
                    if choice.all.replace(wanted(format)?).is_some() {
                        return Err(WeightsError::Twice("all weights"));
                    }
                    last = Some(None);
                }
                (name, Some(format)) => {
                    let group = Group::ALL.into_iter().find(|group| group.name() == name);
                    let group = group.ok_or_else(|| WeightsError::Group(name.to_owned()))?;
                    if choice.slot(Some(group)).replace(wanted(format)?).is_some() {
                        return Err(WeightsError::Twice(group.name()));
                    }
                    last = Some(Some(group));
                }
            }
        }
        Ok(choice)
    }

    /// The same formats with scales of a type.
    pub fn with_scales(self, scale: DType) -> WeightChoice {
        WeightChoice { scale, ..self }
    }

    fn slot(&mut self, group: Option<Group>) -> &mut Option<Wanted> {
        match group {
            None => &mut self.all,
            Some(group) => &mut self.own[group as usize],
        }
    }

    /// Whether every weight stays as the file has it.
    pub fn is_file(&self) -> bool {
        let formats = self.own.iter().chain([&self.all]).flatten();
        formats.into_iter().all(|wanted| wanted.base == Base::File)
    }

    /// What the user wants of a group's weights.
    pub fn of(&self, group: Group) -> Option<Wanted> {
        self.own[group as usize].or(self.all)
    }

    /// What the user wants of a table that is embedding and head in one: the head decides, unless
    /// only the embedding has a format of its own.
    pub fn of_tied(&self) -> Result<Option<Wanted>, WeightsError> {
        let own = |group: Group| self.own[group as usize];
        match (own(Group::Embedding), own(Group::Head)) {
            (Some(embedding), Some(head)) if embedding != head => {
                let (embedding, head) = (embedding.to_string(), head.to_string());
                Err(WeightsError::Tied { embedding, head })
            }
            (Some(embedding), None) => Ok(Some(embedding)),
            _ => Ok(self.of(Group::Head)),
        }
    }

    /// What happens to a weight of `columns` inputs that is of a type in the file.
    pub fn decide(&self, wanted: Option<Wanted>, element: Element, columns: usize) -> Decision {
        let Some(wanted) = wanted.filter(|wanted| wanted.base != Base::File) else {
            return Decision::Keep;
        };
        let target = wanted.element(columns, self.scale);
        match (element, target) {
            (Element::Plain(from), Element::Plain(to)) if from == to => Decision::Keep,
            (Element::Plain(_), _) => Decision::Round(target),
            (Element::Quant(from), Element::Quant(to)) => {
                let is_symmetric = matches!(from.zero, ZeroPoints::Fixed(_));
                let fits = from.bits == to.bits
                    && (wanted.block.is_none() || from.block == to.block)
                    && wanted.zeros.is_none_or(|zeros| zeros != is_symmetric);
                if fits { Decision::Keep } else { Decision::Conflict }
            }
            (Element::Quant(_), Element::Plain(_)) => Decision::Conflict,
        }
    }
}

impl Wanted {
    fn element(self, columns: usize, scale: DType) -> Element {
        let bits = match self.base {
            Base::Int(bits) => bits,
            Base::Float(dtype) => return Element::Plain(dtype),
            Base::File => return Element::Plain(DType::F32),
        };
        let block = match self.block.unwrap_or(Block::Length(DEFAULT_BLOCK)) {
            Block::Length(length) => length,
            Block::Channel => {
                let columns = u32::try_from(columns).unwrap_or(u32::MAX - CHANNEL_STEP);
                columns.max(1).next_multiple_of(CHANNEL_STEP)
            }
        };
        let zero = match self.zeros {
            Some(true) => ZeroPoints::Codes,
            _ => ZeroPoints::Fixed(1 << (bits - 1)),
        };
        // Where products have kernels that such scales serve.
        let short = (bits, scale, zero) == (4, DType::F16, ZeroPoints::Fixed(8));
        Element::Quant(QuantFormat { bits, block, scale, short, zero })
    }
}

fn wanted(name: &str) -> Result<Wanted, WeightsError> {
    match BASES.iter().find(|(known, _)| *known == name) {
        Some((_, base)) => Ok(Wanted { base: *base, block: None, zeros: None }),
        None => Err(WeightsError::Format(name.to_owned())),
    }
}

fn block(value: Option<&str>) -> Result<Block, WeightsError> {
    let value = value.unwrap_or_default();
    if value == "channel" {
        return Ok(Block::Channel);
    }
    let length = value.parse().ok().filter(|length| BLOCKS.contains(length));
    length.map(Block::Length).ok_or_else(|| WeightsError::Block(value.to_owned()))
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = BASES.iter().find(|(_, base)| *base == self.base).map_or("", |(name, _)| name);
        f.write_str(name)?;
        match self.block {
            None => {}
            Some(Block::Length(length)) => write!(f, ",block={length}")?,
            Some(Block::Channel) => f.write_str(",block=channel")?,
        }
        match self.zeros {
            None => Ok(()),
            Some(true) => f.write_str(",zeros"),
            Some(false) => f.write_str(",symmetric"),
        }
    }
}

impl fmt::Display for WeightChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.iter().map(Wanted::to_string);
        let own = Group::ALL
            .into_iter()
            .filter_map(|group| Some(format!("{}={}", group.name(), self.own[group as usize]?)));
        let parts: Vec<String> = all.chain(own).collect();
        f.write_str(if parts.is_empty() { "file" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written_alike() {
        for text in [
            "int4",
            "int4,block=64,zeros",
            "int4,head=int8,block=channel",
            "int8,block=128,symmetric,embedding=f16,layers=file",
            "head=int8",
            "bf16",
            "file",
        ] {
            let choice = WeightChoice::parse(text).unwrap();
            let again = WeightChoice::parse(&choice.to_string()).unwrap();
            assert_eq!(choice, again, "{text}");
        }
        assert!(WeightChoice::parse("file").unwrap().is_file());
        assert!(WeightChoice::default().is_file());
        assert!(!WeightChoice::parse("file,head=int8").unwrap().is_file());
    }

    #[test]
    fn options_concern_the_format_in_front() {
        let choice = WeightChoice::parse("int4,head=int8,block=64").unwrap();
        let element = |group| choice.decide(choice.of(group), Element::Plain(DType::F32), 500);
        let int = |bits, block, zero| {
            let zero = ZeroPoints::Fixed(zero);
            let (scale, short) = (DType::F16, bits == 4);
            Decision::Round(Element::Quant(QuantFormat { bits, block, scale, short, zero }))
        };
        assert_eq!(element(Group::Layers), int(4, 32, 8));
        assert_eq!(element(Group::Head), int(8, 64, 128));
        assert_eq!(choice.of_tied().unwrap(), choice.of(Group::Head));
        let choice = WeightChoice::parse("int8,block=channel").unwrap();
        let wanted = choice.of(Group::Layers);
        let found = choice.decide(wanted, Element::Plain(DType::BF16), 500);
        assert_eq!(found, int(8, 512, 128));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("int5", "unknown format \"int5\"; there are int4, int8, bf16, f16, f32, file"),
            ("", "unknown format \"\"; there are int4, int8, bf16, f16, f32, file"),
            ("int4,int8", "the format of all weights is given twice"),
            ("head=int4,head=int4", "the format of head is given twice"),
            ("block=32", "\"block=32\" belongs behind int4 or int8, as in int4,block=32"),
            ("bf16,zeros", "\"zeros\" belongs behind int4 or int8, as in int4,zeros"),
            ("int4,zeros=1", "\"zeros=1\" belongs behind int4 or int8, as in int4,zeros=1"),
            ("int4,block=48", "\"block\" takes 32, 64, 128 or channel, not \"48\""),
            ("int4,block", "\"block\" takes 32, 64, 128 or channel, not \"\""),
            ("int4,zeros,symmetric", "the format of zero points is given twice"),
            (
                "mlp=int4",
                "unknown part \"mlp\" of a model; there are embedding, head, layers, and block= for \
                 int4 and int8",
            ),
        ] {
            assert_eq!(WeightChoice::parse(text).unwrap_err().to_string(), message);
        }
        let choice = WeightChoice::parse("int4,embedding=f16,head=int8").unwrap();
        let message = choice.of_tied().unwrap_err().to_string();
        assert!(message.starts_with("embedding=f16 and head=int8 are one table"), "{message}");
    }

    #[test]
    fn codes_of_the_file_are_not_rounded_again() {
        let zero = ZeroPoints::Codes;
        let file = Element::Quant(QuantFormat {
            bits: 4,
            block: 64,
            scale: DType::F32,
            short: false,
            zero,
        });
        for (text, decision) in [
            ("int4", Decision::Keep),
            ("int4,block=64,zeros", Decision::Keep),
            ("file", Decision::Keep),
            ("int4,block=32", Decision::Conflict),
            ("int4,symmetric", Decision::Conflict),
            ("int8", Decision::Conflict),
            ("f32", Decision::Conflict),
        ] {
            let choice = WeightChoice::parse(text).unwrap();
            assert_eq!(choice.decide(choice.of(Group::Layers), file, 640), decision, "{text}");
        }
    }
}
