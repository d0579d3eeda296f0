//! Cutting a long text at newlines, to work on the pieces on all cores.

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A piece ends with the first newline at or after this many bytes.
const PIECE: usize = 64 * 1024;

/// Cuts `text` into pieces that end with a newline, all but the last.
///
/// The cuts depend on the text alone. A text without newlines is one piece.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(tail) = rest.as_bytes().get(PIECE..) {
        // In UTF-8, the byte of a newline is never part of another character.
        let Some(newline) = tail.iter().position(|&byte| byte == b'\n') else {
            break;
        };
        let (piece, after) = rest.split_at(PIECE + newline + 1);
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// Does `work` on each item, with its index, on all cores. The results are in order, or the error
/// is the first in order.
pub(crate) fn on_all_cores<I: Sync, T: Send, E: Send>(
    items: &[I],
    work: impl Fn(usize, &I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let run = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(index, item);
            if result.is_err() {
                // No new items. All before this one have been dealt out, and are finished.
                next.store(items.len(), Ordering::Relaxed);
            }
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.insert(index, result);
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 1..cores.min(items.len()) {
            // A thread that cannot be started leaves its work to the others, of which this is one.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_values().collect()
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
                prop_assert!(piece.len() > PIECE && piece.ends_with('\n'));
            }
        }
    }
}
