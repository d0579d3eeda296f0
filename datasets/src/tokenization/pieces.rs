//! Cuts a long text at newlines and processes the pieces on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// A piece ends with the first newline after this many bytes.
const PIECE: usize = 64 * 1024;

/// Without a newline, a piece ends before the last space within this many bytes, or after them.
const LONGEST: usize = 2 * PIECE;

/// The maximum length of a word for training, since the training time grows with its square.
const WORD: usize = 4096;

/// Cuts `text` into pieces of 64 KiB to 128 KiB, at newlines if there are any.
///
/// The cuts depend only on the text.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE {
        let window = &rest.as_bytes()[..rest.len().min(LONGEST)];
        // In UTF-8, the byte of a newline or a space is never part of another character.
        let end = match window[PIECE..].iter().position(|&byte| byte == b'\n') {
            Some(newline) => PIECE + newline + 1,
            None if rest.len() <= LONGEST => break,
            None => match window[PIECE..].iter().rposition(|&byte| byte == b' ') {
                Some(space) => PIECE + space,
                None => rest.floor_char_boundary(LONGEST),
            },
        };
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// Returns the number of bytes up to which `text`, a prefix of a longer text, has the same pieces as the longer text.
pub(crate) fn final_pieces(text: &str) -> usize {
    let mut end = 0;
    for piece in pieces(text) {
        if text.len() - end <= LONGEST {
            break;
        }
        end += piece.len();
    }
    end
}

/// Cuts each piece of `text` further, wherever 4 KiB contain no white space.
pub(crate) fn pieces_of_short_words(text: &str) -> Vec<&str> {
    let mut short = Vec::new();
    for piece in pieces(text) {
        let (mut start, mut word) = (0, 0);
        for (at, character) in piece.char_indices() {
            if character.is_whitespace() {
                word = at;
            } else if at - word >= WORD {
                short.push(&piece[start..at]);
                (start, word) = (at, at);
            }
        }
        short.push(&piece[start..]);
    }
    short
}

/// Runs `work` on each item, with its index, on all cores. Returns the results in order, or the first error in order.
pub(crate) fn on_all_cores<I: Sync, T: Send, E: Send>(
    items: &[I],
    work: impl Fn(usize, &I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let failed = AtomicUsize::new(usize::MAX);
    let results: Vec<Option<Result<T, E>>> = items
        .par_iter()
        .enumerate()
        .map(|(index, item)| {
            // Skips items after an error.
            (index < failed.load(Ordering::Relaxed)).then(|| {
                let result = work(index, item);
                if result.is_err() {
                    failed.fetch_min(index, Ordering::Relaxed);
                }
                result
            })
        })
        .collect();
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cut_at_newlines() {
        let line = "é".repeat(PIECE / 2 - 1) + "\n";
        assert_eq!(pieces(&line), [&line]);
        let two = format!("{line}b\n");
        assert_eq!(pieces(&two), [&two]);
        let three = format!("{line}b\nc");
        assert_eq!(pieces(&three), [&two, "c"]);
        assert!(pieces("").is_empty());
    }

    #[test]
    fn cut_without_newlines() {
        let words = "a b".repeat(LONGEST);
        let cut = pieces(&words);
        assert!(cut.iter().all(|piece| piece.len() <= LONGEST));
        assert!(cut[1..].iter().all(|piece| piece.starts_with(' ')));
        assert_eq!(cut.concat(), words);
        let word = "xé".repeat(LONGEST);
        assert_eq!(pieces(&word).concat(), word);
        assert!(pieces(&word).iter().all(|piece| piece.len() <= LONGEST));
        assert_eq!(pieces(&word)[0].len(), LONGEST - 1);
        assert_eq!(pieces(&word[..LONGEST - 1]).len(), 1);

        let short = pieces_of_short_words(&word);
        assert!(short.iter().all(|piece| piece.len() <= WORD + 2));
        assert_eq!(short.concat(), word);
        assert_eq!(pieces_of_short_words("some words"), ["some words"]);
    }

    #[test]
    fn the_first_error_in_order() {
        let items: Vec<usize> = (0..1000).collect();
        let odd = |_, &item: &usize| {
            if item % 100 == 57 { Err(item) } else { Ok(item) }
        };
        assert_eq!(on_all_cores(&items, odd), Err(57));
        assert_eq!(on_all_cores(&items[60..150], odd).unwrap(), items[60..150]);
        assert_eq!(on_all_cores(&[], odd), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn pieces_are_the_text(lines in prop::collection::vec(0_usize..60_000, 0..8)) {
            let text: String = lines.into_iter().map(|line| "x".repeat(line) + "\n").collect();
            let pieces = pieces(&text);
            prop_assert_eq!(pieces.concat(), text.as_str());
            for piece in pieces.iter().rev().skip(1) {
                prop_assert!(piece.len() > PIECE && piece.len() <= LONGEST && piece.ends_with('\n'));
            }
        }
    }
}
