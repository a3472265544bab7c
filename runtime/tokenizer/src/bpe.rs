//! Byte-pair encoding of one piece.
//!
//! Symbols form a linked list; a heap holds the candidate merges by rank, then position, so a
//! piece of n symbols takes O(n log n) however long it is. Entries that later merges made stale
//! are recognised when they surface.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::TokenizerError;
use crate::component::Unknown;
use crate::table::{MODEL, Table};

/// The options of a byte-pair model, borrowed from the config.
#[derive(Clone, Copy)]
pub(crate) struct BpeOptions<'a> {
    pub(crate) unknown: Unknown,
    pub(crate) fuse_unknown: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) ignore_merges: bool,
    pub(crate) prefix: &'a str,
    pub(crate) suffix: &'a str,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    alive: bool,
}

/// Working memory, kept between the pieces of one text.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    /// Rank and position (smallest first), and the id that the merge makes.
    queue: BinaryHeap<Reverse<(u32, u32, u32)>>,
    spelling: String,
}

impl Scratch {
    /// Appends the ids of `piece`.
    pub(crate) fn encode(
        &mut self,
        table: Table<'_>,
        options: BpeOptions<'_>,
        piece: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if options.ignore_merges
            && let Some(id) = table.find(piece.as_bytes(), MODEL)
        {
            ids.push(id);
            return Ok(());
        }
        self.symbols.clear();
        self.spell(table, options, piece)?;
        self.merge(table);
        ids.extend(self.symbols.iter().filter(|symbol| symbol.alive).map(|symbol| symbol.id));
        Ok(())
    }

    /// One symbol per character, or per byte of one that the vocabulary lacks.
    fn spell(
        &mut self,
        table: Table<'_>,
        options: BpeOptions<'_>,
        piece: &str,
    ) -> Result<(), TokenizerError> {
        // An unknown-token waits for the next known character, so that a run of them can fuse.
        let mut waiting = None;
        for (start, character) in piece.char_indices() {
            let end = start + character.len_utf8();
            let prefix = if start > 0 { options.prefix } else { "" };
            let suffix = if end == piece.len() { options.suffix } else { "" };
            let bare = &piece[start..end];
            let mut spelling = std::mem::take(&mut self.spelling);
            let spelled = if prefix.is_empty() && suffix.is_empty() {
                bare
            } else {
                spelling.clear();
                spelling.extend([prefix, bare, suffix]);
                spelling.as_str()
            };
            if let Some(id) = table.find(spelled.as_bytes(), MODEL) {
                if let Some(unknown) = waiting.take() {
                    self.push(unknown);
                }
                self.push(id);
            } else if !(options.byte_fallback && self.push_bytes(table, spelled)) {
                match options.unknown {
                    Unknown::None => {}
                    Unknown::Missing => return Err(TokenizerError::NoUnknownToken { character }),
                    Unknown::Id(id) => {
                        if let Some(unknown) = waiting
                            && !options.fuse_unknown
                        {
                            self.push(unknown);
                        }
                        waiting = Some(id);
                    }
                }
            }
            self.spelling = spelling;
        }
        if let Some(unknown) = waiting {
            self.push(unknown);
        }
        Ok(())
    }

    /// Pushes `<0xNN>` for every byte, or nothing if the vocabulary lacks one of them.
    fn push_bytes(&mut self, table: Table<'_>, text: &str) -> bool {
        let first = self.symbols.len();
        for byte in text.bytes() {
            match byte_token(table, byte) {
                Some(id) => self.push(id),
                None => {
                    self.symbols.truncate(first);
                    return false;
                }
            }
        }
        true
    }

    fn push(&mut self, id: u32) {
        let index = self.symbols.len() as u32;
        let previous = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { id, previous, next: index + 1, alive: true });
    }

    fn merge(&mut self, table: Table<'_>) {
        let symbols = &mut self.symbols;
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        self.queue.clear();
        for position in 1..symbols.len() {
            if let Some((rank, joined)) =
                table.merge(symbols[position - 1].id, symbols[position].id)
            {
                self.queue.push(Reverse((rank, position as u32 - 1, joined)));
            }
        }
        while let Some(Reverse((_, position, joined))) = self.queue.pop() {
            let left = symbols[position as usize];
            if !left.alive || left.next == NONE {
                continue;
            }
            let right = symbols[left.next as usize];
            if table.merge(left.id, right.id).is_none_or(|(_, id)| id != joined) {
                continue;
            }
            symbols[left.next as usize].alive = false;
            symbols[position as usize].id = joined;
            symbols[position as usize].next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].previous = position;
                let next = symbols[right.next as usize];
                if let Some((rank, id)) = table.merge(joined, next.id) {
                    self.queue.push(Reverse((rank, position, id)));
                }
            }
            if left.previous != NONE {
                let previous = symbols[left.previous as usize];
                if let Some((rank, id)) = table.merge(previous.id, joined) {
                    self.queue.push(Reverse((rank, left.previous, id)));
                }
            }
        }
    }
}

/// The id of the token `<0xNN>`.
pub(crate) fn byte_token(table: Table<'_>, byte: u8) -> Option<u32> {
    let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value & 15)];
    table.find(&[b'<', b'0', b'x', digit(byte >> 4), digit(byte), b'>'], MODEL)
}
