//! Unicode normal forms as the reference computes them.
//!
//! The reference's tables are of Unicode 9 and ours are current. A character that has since been
//! assigned is inert there: it neither decomposes, composes nor moves. Models saw their training
//! text through those tables, so such characters are inert here too: a text is normalised in the
//! stretches between them.

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// A normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// The normal form of `text`, or `None` if that is `text` itself for certain.
pub(crate) fn normal_form(text: &str, form: Form) -> Option<String> {
    if text.is_ascii() || form == Form::Nfc && is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_newer) {
        let (stretch, tail) = rest.split_at(at);
        push(stretch, form, &mut out);
        let width = tail.chars().next().map_or(0, char::len_utf8);
        let (newer, tail) = tail.split_at(width);
        out.push_str(newer);
        rest = tail;
    }
    push(rest, form, &mut out);
    Some(out)
}

fn push(stretch: &str, form: Form, out: &mut String) {
    match form {
        Form::Nfc => out.extend(stretch.nfc()),
        Form::Nfd => out.extend(stretch.nfd()),
        Form::Nfkc => out.extend(stretch.nfkc()),
        Form::Nfkd => out.extend(stretch.nfkd()),
    }
}

fn is_newer(character: char) -> bool {
    let code = u32::from(character);
    if code < NEWER[0].0 {
        return false;
    }
    let index = NEWER.partition_point(|&(_, last)| last < code);
    NEWER.get(index).is_some_and(|&(first, _)| first <= code)
}

/// Inclusive ranges of the characters whose normal forms or classes the reference does not know,
/// found by comparing both for every code point. (The ranges also span a few code points that are
/// unassigned to this day.)
#[rustfmt::skip]
const NEWER: [(u32, u32); 86] = [
    (0x558, 0x558), (0x58b, 0x58c), (0x5c8, 0x5c9), (0x7fd, 0x7fd),
    (0x897, 0x89f), (0x8ca, 0x8d3), (0x9fe, 0x9fe), (0xc3c, 0xc3c),
    (0xd3b, 0xd3c), (0xeba, 0xeba), (0x1715, 0x1715), (0x1abf, 0x1af0),
    (0x1df6, 0x1dfa), (0x209d, 0x209f), (0x32ff, 0x32ff), (0xa7f1, 0xa7f4),
    (0xa82c, 0xa82c), (0xab69, 0xab69), (0x105c9, 0x105c9), (0x105d2, 0x105d2),
    (0x105da, 0x105da), (0x105e4, 0x105e4), (0x10781, 0x10785), (0x10787, 0x107b0),
    (0x107b2, 0x107bf), (0x10d24, 0x10d27), (0x10d69, 0x10d6d), (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf), (0x10ef0, 0x10efb), (0x10efd, 0x10eff), (0x10f46, 0x10f50),
    (0x10f82, 0x10f85), (0x11070, 0x11070), (0x1133b, 0x1133b), (0x11382, 0x11385),
    (0x1138b, 0x1138b), (0x1138e, 0x1138e), (0x11390, 0x11391), (0x113c2, 0x113c2),
    (0x113c5, 0x113c5), (0x113c7, 0x113c8), (0x113ce, 0x113d0), (0x1145e, 0x1145e),
    (0x11839, 0x1183a), (0x11935, 0x11935), (0x11938, 0x11938), (0x1193d, 0x1193e),
    (0x11943, 0x11943), (0x119e0, 0x119e0), (0x11a34, 0x11a34), (0x11a47, 0x11a47),
    (0x11a99, 0x11a99), (0x11d42, 0x11d42), (0x11d44, 0x11d45), (0x11d97, 0x11d97),
    (0x11f41, 0x11f42), (0x1611e, 0x1611e), (0x16121, 0x16129), (0x1612f, 0x1612f),
    (0x16d63, 0x16d63), (0x16d67, 0x16d6a), (0x16ff0, 0x16ff1), (0x1b123, 0x1b126),
    (0x1ccd6, 0x1ccf9), (0x1d127, 0x1d128), (0x1d250, 0x1d252), (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f), (0x1d280, 0x1d281), (0x1d6a6, 0x1d6a6), (0x1df95, 0x1df95),
    (0x1dfcd, 0x1dfff), (0x1e030, 0x1e06d), (0x1e08f, 0x1e08f), (0x1e130, 0x1e136),
    (0x1e2ae, 0x1e2ae), (0x1e2ec, 0x1e2ef), (0x1e4ec, 0x1e4ef), (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3), (0x1e6e6, 0x1e6e6), (0x1e6ee, 0x1e6ef), (0x1e6f5, 0x1e6f5),
    (0x1f16c, 0x1f16c), (0x1fbf0, 0x1fbf9),
];
