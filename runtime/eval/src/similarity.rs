//! Likeness of texts: normal forms, overlap of words, longest common subsequences.

use std::collections::{HashMap, HashSet};

/// The words of an answer in lower case, without ASCII punctuation and English articles.
pub(crate) fn normal_words(text: &str) -> Vec<String> {
    let kept: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = kept.split_whitespace().filter(|word| !["a", "an", "the"].contains(word));
    words.map(str::to_owned).collect()
}

/// The characters of an answer in lower case, without white space and punctuation.
pub(crate) fn normal_zh(text: &str) -> Vec<char> {
    let marks = "！？｡。、〃《》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";
    // Full-width forms of ASCII punctuation, and the half-width forms of the Chinese.
    let wide = |c: char| {
        ('\u{ff01}'..='\u{ff0f}').contains(&c)
            || ('\u{ff1a}'..='\u{ff20}').contains(&c)
            || ('\u{ff3b}'..='\u{ff40}').contains(&c)
            || ('\u{ff5b}'..='\u{ff64}').contains(&c)
    };
    let dropped =
        |c: &char| c.is_whitespace() || c.is_ascii_punctuation() || wide(*c) || marks.contains(*c);
    text.to_lowercase().chars().filter(|c| !dropped(c)).collect()
}

/// F1 of two bags of words or of characters.
pub(crate) fn overlap_f1<T: Eq + std::hash::Hash>(given: &[T], truth: &[T]) -> f64 {
    let mut left: HashMap<&T, usize> = HashMap::new();
    for item in truth {
        *left.entry(item).or_default() += 1;
    }
    let mut common = 0;
    for item in given {
        if let Some(count) = left.get_mut(item).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    // 2PR / (P + R) with P = common / given and R = common / truth.
    if common == 0 { 0.0 } else { 2.0 * f64::from(common) / (given.len() + truth.len()) as f64 }
}

/// F1 of ROUGE-L over whole summaries (Lin, *ROUGE*, 2004, section 3.2), in the form of the Python
/// package `rouge` that LongBench's published scores are made with: sentences end at full stops, and
/// distinct words count.
pub(crate) fn rouge_l(given: &str, truth: &str) -> f64 {
    let (given, truth) = (split_sentences(given), split_sentences(truth));
    let distinct =
        |sentences: &[Vec<String>]| sentences.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let mut union = HashSet::new();
    for sentence in &truth {
        for other in &given {
            for index in common_subsequence(sentence, other) {
                union.insert(&sentence[index]);
            }
        }
    }
    let common = union.len() as f64;
    let both = distinct(&given) + distinct(&truth);
    if common == 0.0 { 0.0 } else { 2.0 * common / both }
}

fn split_sentences(text: &str) -> Vec<Vec<String>> {
    let sentences = text
        .split('.')
        .map(|sentence| sentence.split_whitespace().map(str::to_owned).collect::<Vec<String>>());
    sentences.filter(|sentence| !sentence.is_empty()).collect()
}

/// Indices into the first of one longest common subsequence.
fn common_subsequence<T: PartialEq>(one: &[T], other: &[T]) -> Vec<usize> {
    let width = other.len() + 1;
    let mut length = vec![0u32; (one.len() + 1) * width];
    for (i, item) in one.iter().enumerate() {
        for (j, candidate) in other.iter().enumerate() {
            length[(i + 1) * width + j + 1] = if item == candidate {
                length[i * width + j] + 1
            } else {
                length[i * width + j + 1].max(length[(i + 1) * width + j])
            };
        }
    }
    let (mut i, mut j) = (one.len(), other.len());
    let mut indices = Vec::new();
    while i > 0 && j > 0 {
        if one[i - 1] == other[j - 1] {
            indices.push(i - 1);
            (i, j) = (i - 1, j - 1);
        } else if length[(i - 1) * width + j] > length[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    indices.reverse();
    indices
}

/// Twice the longest common subsequence over the sum of the lengths, in characters: the similarity
/// of texts under insertions and deletions. 1 for two empty texts.
pub(crate) fn indel_ratio(one: &str, other: &str) -> f64 {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let both = one.len() + other.len();
    // One row of the table is enough for the length alone.
    let mut row = vec![0usize; other.len() + 1];
    for item in &one {
        let mut diagonal = 0;
        for (j, candidate) in other.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if item == candidate { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    if both == 0 { 1.0 } else { 2.0 * row[other.len()] as f64 / both as f64 }
}
