//! Normalizers, pre-tokenizers, post-processors and decoders of tokenizer.json.
//!
//! Sequences are flattened. What a component does not say gets the reference's default.

use crate::TokenizerError;
use crate::component::{
    Behaviour, Decoder, Needle, Normalizer, PreTokenizer, PrependScheme, TemplatePart,
};
use crate::pack::json::Node;
use crate::pattern::Program;
use crate::pattern::compile::{compile, compile_literal};

/// The pattern of the byte-level pre-tokenizer, as GPT-2 defined it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Nested sequences deeper than this are refused.
const MAX_NESTING: u32 = 16;

/// Collects the programs of all patterns, each once.
#[derive(Default)]
pub(crate) struct Patterns {
    pub(crate) programs: Vec<Program>,
}

impl Patterns {
    /// Index of the program for a regular expression found at `node`.
    pub(crate) fn regex(&mut self, node: &Node<'_>, pattern: &str) -> Result<u32, TokenizerError> {
        match compile(pattern) {
            Ok(program) => Ok(self.add(program)),
            Err(refusal) => node.unsupported(format!("{} in a pattern", refusal.0)),
        }
    }

    fn add(&mut self, program: Program) -> u32 {
        let known = self.programs.iter().position(|known| *known == program);
        known.unwrap_or_else(|| {
            self.programs.push(program);
            self.programs.len() - 1
        }) as u32
    }

    /// `{"String": …}` or `{"Regex": …}`.
    fn needle(&mut self, node: &Node<'_>) -> Result<Needle, TokenizerError> {
        if let Some(text) = node.get("String") {
            let literal = text.text()?;
            if !literal.is_empty() {
                return Ok(Needle::Literal(literal.to_owned()));
            }
            return match compile_literal(literal) {
                Ok(program) => Ok(Needle::Program(self.add(program))),
                Err(refusal) => text.unsupported(refusal.0),
            };
        }
        let regex = match node.get("Regex") {
            Some(regex) => regex,
            None => return node.malformed("neither `String` nor `Regex`"),
        };
        Ok(Needle::Program(self.regex(&regex, regex.text()?)?))
    }
}

/// Calls `leaf` for every component that is not a sequence.
fn flatten<'a>(
    node: &Node<'a>,
    members: &str,
    depth: u32,
    leaf: &mut dyn FnMut(&Node<'a>, &str) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    match node.kind()? {
        "Sequence" if depth >= MAX_NESTING => node.unsupported("nesting this deep"),
        "Sequence" => node
            .need(members)?
            .items()?
            .iter()
            .try_for_each(|item| flatten(item, members, depth + 1, leaf)),
        kind => leaf(node, kind),
    }
}

/// The file's `normalizer`.
pub(crate) fn normalizers(
    root: &Node<'_>,
    patterns: &mut Patterns,
) -> Result<Vec<Normalizer>, TokenizerError> {
    let mut stages = Vec::new();
    let Some(node) = root.get("normalizer") else { return Ok(stages) };
    flatten(&node, "normalizers", 0, &mut |node, kind| {
        stages.push(match kind {
            "Prepend" => Normalizer::Prepend(node.need("prepend")?.text()?.to_owned()),
            "Replace" => Normalizer::Replace {
                needle: patterns.needle(&node.need("pattern")?)?,
                content: node.need("content")?.text()?.to_owned(),
            },
            "NFC" => Normalizer::Nfc,
            "NFD" => Normalizer::Nfd,
            "NFKC" => Normalizer::Nfkc,
            "NFKD" => Normalizer::Nfkd,
            "Lowercase" => Normalizer::Lowercase,
            "Strip" => Normalizer::Strip {
                left: node.need_flag("strip_left")?,
                right: node.need_flag("strip_right")?,
            },
            "StripAccents" => Normalizer::StripAccents,
            "ByteLevel" => Normalizer::ByteLevel,
            other => return node.unsupported(format!("the normalizer {other}")),
        });
        Ok(())
    })?;
    Ok(stages)
}

/// The file's `pre_tokenizer`.
pub(crate) fn pre_tokenizers(
    root: &Node<'_>,
    patterns: &mut Patterns,
) -> Result<Vec<PreTokenizer>, TokenizerError> {
    let mut stages = Vec::new();
    let Some(node) = root.get("pre_tokenizer") else { return Ok(stages) };
    flatten(&node, "pretokenizers", 0, &mut |node, kind| {
        stages.push(match kind {
            "ByteLevel" => PreTokenizer::ByteLevel {
                add_prefix_space: node.need_flag("add_prefix_space")?,
                pattern: if node.flag_or("use_regex", true)? {
                    Some(patterns.regex(node, GPT2)?)
                } else {
                    None
                },
            },
            "Split" => PreTokenizer::Split {
                needle: patterns.needle(&node.need("pattern")?)?,
                behaviour: behaviour(&node.need("behavior")?)?,
                invert: node.need_flag("invert")?,
            },
            "Metaspace" => {
                let (replacement, scheme) = metaspace(node)?;
                PreTokenizer::Metaspace { replacement, scheme, split: node.flag_or("split", true)? }
            }
            "Digits" => PreTokenizer::Digits { individual: node.need_flag("individual_digits")? },
            "Whitespace" => PreTokenizer::Split {
                needle: Needle::Program(patterns.regex(node, r"\w+|[^\w\s]+")?),
                behaviour: Behaviour::Removed,
                invert: true,
            },
            "WhitespaceSplit" => PreTokenizer::WhitespaceSplit,
            "Punctuation" => PreTokenizer::Split {
                needle: Needle::Program(patterns.regex(node, r"[!-/:-@\[-`{-~\p{P}]")?),
                behaviour: match node.get("behavior") {
                    Some(node) => behaviour(&node)?,
                    None => Behaviour::Isolated,
                },
                invert: false,
            },
            other => return node.unsupported(format!("the pre-tokenizer {other}")),
        });
        Ok(())
    })?;
    Ok(stages)
}

fn behaviour(node: &Node<'_>) -> Result<Behaviour, TokenizerError> {
    Ok(match node.text()? {
        "Removed" => Behaviour::Removed,
        "Isolated" => Behaviour::Isolated,
        "MergedWithPrevious" => Behaviour::MergedWithPrevious,
        "MergedWithNext" => Behaviour::MergedWithNext,
        "Contiguous" => Behaviour::Contiguous,
        other => return node.unsupported(format!("the split behaviour {other}")),
    })
}

/// Replacement and scheme; files from before `prepend_scheme` have `add_prefix_space`.
fn metaspace(node: &Node<'_>) -> Result<(char, PrependScheme), TokenizerError> {
    let replacement = node.need("replacement")?.character()?;
    let scheme = match node.get("prepend_scheme") {
        None => PrependScheme::Always,
        Some(scheme) => match scheme.text()? {
            "always" => PrependScheme::Always,
            "first" => PrependScheme::First,
            "never" => PrependScheme::Never,
            other => return scheme.unsupported(format!("the prepend scheme {other}")),
        },
    };
    if !node.flag_or("add_prefix_space", true)? {
        if node.get("prepend_scheme").is_some() && scheme != PrependScheme::Never {
            return node.malformed("`add_prefix_space` contradicts `prepend_scheme`");
        }
        if node.get("prepend_scheme").is_none() {
            return node.malformed("`add_prefix_space` is false without `prepend_scheme`");
        }
    }
    Ok((replacement, scheme))
}

/// The file's `decoder`; without one, tokens are joined by spaces.
pub(crate) fn decoders(
    root: &Node<'_>,
    patterns: &mut Patterns,
) -> Result<Vec<Decoder>, TokenizerError> {
    let Some(node) = root.get("decoder") else { return Ok(vec![Decoder::JoinWithSpaces]) };
    let mut stages = Vec::new();
    flatten(&node, "decoders", 0, &mut |node, kind| {
        stages.push(match kind {
            "ByteLevel" => Decoder::ByteLevel,
            "Replace" => Decoder::Replace {
                needle: patterns.needle(&node.need("pattern")?)?,
                content: node.need("content")?.text()?.to_owned(),
            },
            "ByteFallback" => Decoder::ByteFallback,
            "Fuse" => Decoder::Fuse,
            "Strip" => Decoder::Strip {
                content: node.need("content")?.character()?,
                start: node.need("start")?.word()?,
                stop: node.need("stop")?.word()?,
            },
            "Metaspace" => {
                let (replacement, scheme) = metaspace(node)?;
                Decoder::Metaspace { replacement, scheme }
            }
            "BPEDecoder" => Decoder::Bpe { suffix: node.need("suffix")?.text()?.to_owned() },
            "WordPiece" => Decoder::WordPiece {
                prefix: node.need("prefix")?.text()?.to_owned(),
                cleanup: node.need_flag("cleanup")?,
            },
            other => return node.unsupported(format!("the decoder {other}")),
        });
        Ok(())
    })?;
    Ok(stages)
}

/// The file's `post_processor`, as the sequence of ids and text for one text.
pub(crate) fn template(root: &Node<'_>) -> Result<Vec<TemplatePart>, TokenizerError> {
    let mut template = None;
    if let Some(node) = root.get("post_processor") {
        flatten(&node, "processors", 0, &mut |node, kind| {
            let parts = match kind {
                // Moves offsets, not ids.
                "ByteLevel" => return Ok(()),
                "TemplateProcessing" => template_parts(node)?,
                "RobertaProcessing" | "BertProcessing" => {
                    let id = |key: &str| {
                        let pair = node.need(key)?;
                        match pair.items()?.get(1) {
                            Some(id) => Ok(TemplatePart::Ids(vec![id.word()?])),
                            None => pair.malformed("not a token and its id"),
                        }
                    };
                    vec![id("cls")?, TemplatePart::Text, id("sep")?]
                }
                other => return node.unsupported(format!("the post-processor {other}")),
            };
            if template.replace(parts).is_some() {
                return node.unsupported("a second template in one sequence");
            }
            Ok(())
        })?;
    }
    Ok(template.unwrap_or_else(|| vec![TemplatePart::Text]))
}

fn template_parts(node: &Node<'_>) -> Result<Vec<TemplatePart>, TokenizerError> {
    let tokens = node.need("special_tokens")?;
    let mut parts = Vec::new();
    for piece in node.need("single")?.items()? {
        if let Some(special) = piece.get("SpecialToken") {
            let name = special.need("id")?;
            let ids = tokens.need(name.text()?)?.need("ids")?.items()?;
            let ids = ids.iter().map(Node::word).collect::<Result<_, _>>()?;
            parts.push(TemplatePart::Ids(ids));
        } else {
            match piece.need("Sequence")?.need("id")?.text()? {
                "A" => parts.push(TemplatePart::Text),
                other => return piece.malformed(format!("sequence {other} in a single template")),
            }
        }
    }
    Ok(parts)
}
