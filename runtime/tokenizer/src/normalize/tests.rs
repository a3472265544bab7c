//! The byte alphabet, and what a span knows of its origin.

use super::*;

#[test]
fn the_byte_alphabet_is_a_bijection() {
    for byte in 0..=255u8 {
        assert_eq!(letter_to_byte(BYTE_LETTERS[usize::from(byte)]), Some(byte));
    }
    assert_eq!(BYTE_LETTERS[usize::from(b' ')], 'Ġ');
    assert_eq!((0..0x400).filter_map(char::from_u32).filter_map(letter_to_byte).count(), 256);
}

#[test]
fn spans_remember_the_start_of_the_input() {
    let mut span = Span::of_input("éa", 0);
    assert_eq!(span.at_start, 2);
    span.prepend("▁");
    assert_eq!(span.at_start, 5);
    assert!(span.slice(3, 6).is_at_start());
    assert!(!span.slice(5, 6).is_at_start());
    assert!(!Span::of_input("a", 7).is_at_start());
    // What stands for `é` now stems from the start, what stands for `éa` ends elsewhere.
    let mut one = Span::of_input("éa", 0);
    one.replace(&Needle::Literal("é".to_owned()), "xyz", &[]).unwrap();
    assert_eq!((one.text.as_str(), one.at_start), ("xyza", 3));
    let mut two = Span::of_input("éa", 0);
    two.replace(&Needle::Literal("éa".to_owned()), "xyz", &[]).unwrap();
    assert!(!two.is_at_start());
}
