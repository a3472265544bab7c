//! Texts one behind the other in one buffer, which keeps its room: a token's pieces cost no allocation.

/// Bytes that a buffer of text begins with, which is more than almost every token has.
pub(super) const ROOM: usize = 256;

/// Pieces of text, in order.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    text: String,
    /// Where each piece ends; the next one begins there.
    ends: Vec<usize>,
}

impl Pieces {
    /// No pieces, with room for those of a token.
    pub fn new() -> Pieces {
        Pieces { text: String::with_capacity(ROOM), ends: Vec::with_capacity(ROOM) }
    }

    /// Forgets all pieces.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: &str) {
        self.write(|text| text.push_str(piece));
    }

    /// Adds a piece that `write` appends to a text.
    pub fn write(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }

    /// The pieces.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.text[*start..*end])
    }

    /// All pieces, joined.
    pub fn joined(&self) -> &str {
        &self.text
    }
}

/// Appends `text` with every `from` replaced, as `str::replace` has it.
pub(super) fn append_replaced(text: &str, from: &str, to: &str, out: &mut String) {
    let mut copied = 0;
    for (start, found) in text.match_indices(from) {
        out.push_str(&text[copied..start]);
        out.push_str(to);
        copied = start + found.len();
    }
    out.push_str(&text[copied..]);
}
