//! Texts of any kind as filler: read, checked, cut into sentences.

use std::path::Path;

use crate::Error;

/// Bytes of a file that are read into memory at most.
pub(crate) const LARGEST_FILE: u64 = 4 << 30;

/// Characters of a sentence at most: what is longer is cut at a word.
const LONGEST_SENTENCE: usize = 400;

/// A whole file in UTF-8.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    let wrong = |source| Error::File { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(wrong)?.len();
    if bytes > LARGEST_FILE {
        return Err(Error::TooLarge { path: path.to_owned(), bytes, limit: LARGEST_FILE });
    }
    String::from_utf8(std::fs::read(path).map_err(wrong)?).map_err(|error| Error::NotText {
        path: path.to_owned(),
        valid: error.utf8_error().valid_up_to(),
    })
}

/// Sentences with single spaces: an end mark followed by white space ends one, and so does a blank
/// line. Fragments without letters are left out.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut sentence = String::new();
    let mut flush = |sentence: &mut String| {
        if sentence.chars().any(char::is_alphabetic) {
            found.push(std::mem::take(sentence));
        }
        sentence.clear();
    };
    let text = text.replace("\r\n", "\n");
    for paragraph in text.split("\n\n") {
        for word in paragraph.split_whitespace() {
            if !sentence.is_empty() {
                sentence.push(' ');
            }
            sentence.push_str(word);
            let bare = word.trim_end_matches(['"', '\'', ')', '”', '’']);
            let ends = bare.ends_with(['.', '!', '?', '。', '！', '？']);
            if ends || sentence.len() > LONGEST_SENTENCE {
                flush(&mut sentence);
            }
        }
        flush(&mut sentence);
    }
    found
}

/// Lower-case ASCII words of four to nine letters that occur three times or more, sorted; with all
/// that occur if there are fewer than 64 of those.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut count = std::collections::BTreeMap::<&str, usize>::new();
    for word in text.split(|c: char| !c.is_alphabetic() && c != '\'') {
        if (4..=9).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase()) {
            *count.entry(word).or_default() += 1;
        }
    }
    let often: Vec<&str> = count.iter().filter(|(_, n)| **n >= 3).map(|(word, _)| *word).collect();
    let chosen = if often.len() < 64 { count.into_keys().collect() } else { often };
    chosen.into_iter().map(str::to_owned).collect()
}

/// The longest beginning and the longest end of a text that have at most so many tokens.
///
/// LongBench (Bai et al., 2023) cuts prompts so, since instructions stand at both ends. The text is
/// cut between characters, where a tokenizer may count a token more than in the whole, so both parts
/// are measured as they are, and joined again.
pub(crate) fn cut_middle(
    text: &str,
    front: usize,
    back: usize,
    measure: &dyn Fn(&str) -> usize,
) -> String {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let last = starts.len() - 1;
    let head = longest(last, |chars| measure(&text[..starts[chars]]) <= front);
    let mut end = back;
    loop {
        let tail = longest(last - head, |chars| measure(&text[starts[last - chars]..]) <= end);
        let cut = format!("{}{}", &text[..starts[head]], &text[starts[last - tail]..]);
        let excess = measure(&cut).saturating_sub(front + back);
        if excess == 0 || end == 0 {
            return cut;
        }
        end = end.saturating_sub(excess);
    }
}

/// The largest number up to `most` that fits, where every smaller one fits too; 0 if none does.
fn longest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
