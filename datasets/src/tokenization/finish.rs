//! Finishes encoded sequences: cuts them and adds special tokens.

use tokenizers::{
    Result, TruncationDirection, TruncationParams, TruncationStrategy, models::wordlevel::WordLevel,
};

use super::{Encoding, fast::Tokens, pipeline::added_tokens};

/// The last steps of encoding, for one setting of truncation and special tokens.
///
/// [`Frame`]s finish sequences that need no cutting; the crate handles all others.
#[derive(Debug)]
pub(super) struct Finish {
    /// The post-processor with an empty vocabulary. The real vocabulary is large and not needed here.
    tokenizer: tokenizers::Tokenizer,
    special: bool,
    /// How overlong sequences are cut.
    truncation: Option<TruncationParams>,
    /// Whether the rest of a cut sequence is lost.
    loses: bool,
    single: Option<Frame>,
    pair: Option<Frame>,
}

/// The tokens around one or two sequences.
#[derive(Debug)]
struct Frame {
    parts: Vec<Part>,
    /// The number of tokens that it adds.
    added: usize,
}

#[derive(Debug)]
enum Part {
    Special(Encoding),
    Sequence { index: usize, segment: u32, number: Option<u8> },
}

impl Finish {
    /// Creates the steps for a tokenizer. The caller must have checked the room that `truncation` leaves.
    pub(super) fn new(
        tokenizer: &tokenizers::Tokenizer,
        special: bool,
        truncation: Option<TruncationParams>,
        loses: bool,
    ) -> Result<Self> {
        let mut empty = tokenizers::Tokenizer::new(WordLevel::default());
        empty.with_post_processor(tokenizer.get_post_processor().cloned());
        let (single, pair) = (Frame::find(&empty, false, special)?, Frame::find(&empty, true, special)?);
        // Set at once, it would be checked against special tokens, even if none are added.
        empty.with_truncation(
            truncation.as_ref().map(|_| TruncationParams { max_length: usize::MAX, ..Default::default() }),
        )?;
        if let (Some(set), Some(truncation)) = (empty.get_truncation_mut(), &truncation) {
            set.clone_from(truncation);
        }
        Ok(Self { tokenizer: empty, special, truncation, loses, single, pair })
    }

    /// Returns whether post-processing may need the texts of the tokens.
    pub(super) fn needs_texts(&self, pair: bool) -> bool {
        self.frame(pair).is_none()
    }

    fn frame(&self, pair: bool) -> Option<&Frame> {
        if pair { self.pair.as_ref() } else { self.single.as_ref() }
    }

    /// Finishes a sequence or a pair. Encodings of the rest of cut sequences follow.
    pub(super) fn finish(&self, mut first: Tokens, mut second: Option<Tokens>) -> Result<Vec<Encoding>> {
        if self.loses {
            self.cut(&mut first, second.as_mut());
        }
        let len = first.ids.len() + second.as_ref().map_or(0, |second| second.ids.len());
        let frame = self.frame(second.is_some());
        if let Some(frame) = frame
            .filter(|frame| self.truncation.as_ref().is_none_or(|cut| len + frame.added <= cut.max_length))
        {
            return Ok(vec![frame.put(len, [Some(first), second])]);
        }
        let second = second.map(|second| second.encoding(1));
        let mut encoding = self.tokenizer.post_process(first.encoding(0), second, self.special)?;
        let further = encoding.take_overflowing();
        Ok([encoding].iter().chain(&further).map(Encoding::from).collect())
    }

    /// Cuts overlong sequences if the rest is lost. The crate would still make encodings of the rest: for a pair, of
    /// every part of one with every part of the other.
    fn cut(&self, first: &mut Tokens, second: Option<&mut Tokens>) {
        let Some(truncation) = &self.truncation else { return };
        let added = if self.special { added_tokens(&self.tokenizer, second.is_some()) } else { 0 };
        let room = truncation.max_length.saturating_sub(added);
        let left = truncation.direction == TruncationDirection::Left;
        let lengths = (first.ids.len(), second.as_ref().map(|second| second.ids.len()));
        if let Some((of_first, of_second)) = cut_lengths(&truncation.strategy, lengths, room) {
            first.keep(of_first, left);
            if let Some(second) = second {
                second.keep(of_second, left);
            }
        }
    }

    /// Returns the ids before and after a single sequence, if post-processing does nothing else.
    pub(super) fn around(&self) -> Option<(&[u32], &[u32])> {
        match self.single.as_ref()?.parts.as_slice() {
            [Part::Special(before), Part::Sequence { .. }, Part::Special(after)] => {
                Some((&before.ids, &after.ids))
            }
            [Part::Special(before), Part::Sequence { .. }] => Some((&before.ids, &[])),
            [Part::Sequence { .. }, Part::Special(after)] => Some((&[], &after.ids)),
            [Part::Sequence { .. }] => Some((&[], &[])),
            _ => None,
        }
    }
}

/// Returns the lengths of two sequences cut to `room` tokens, or `None` if nothing needs cutting or the strategy cannot
/// cut, which the crate then reports.
fn cut_lengths(
    strategy: &TruncationStrategy,
    (first, second): (usize, Option<usize>),
    room: usize,
) -> Option<(usize, usize)> {
    let other = second.unwrap_or(0);
    let excess = (first + other).checked_sub(room).filter(|&excess| excess > 0)?;
    match strategy {
        _ if room == 0 => Some((0, 0)),
        TruncationStrategy::LongestFirst if second.is_none() => Some((room, 0)),
        TruncationStrategy::LongestFirst => {
            let (shorter, longer) = match first.min(other) {
                // Both exceed half of the room: the longer one gets the odd token.
                least if 2 * least > room => (room / 2, room - room / 2),
                least => (least, room - least),
            };
            Some(if first > other { (longer, shorter) } else { (shorter, longer) })
        }
        TruncationStrategy::OnlyFirst => (first > excess).then(|| (first - excess, other)),
        TruncationStrategy::OnlySecond => (other > excess).then(|| (first, other - excess)),
    }
}

impl Frame {
    /// Detects what a post-processor does by giving it sequences with distinctive tokens. Returns `None` if it does
    /// more than put tokens around them.
    fn find(tokenizer: &tokenizers::Tokenizer, pair: bool, special: bool) -> Result<Option<Self>> {
        // No vocabulary has such large ids. The text has a space at each end, as some post-processors exclude spaces
        // from the offsets.
        const MARKS: [u32; 2] = [u32::MAX - 1, u32::MAX];
        const OFFSETS: (usize, usize) = (10, 20);
        let sequence = |index: usize| {
            let mark = tokenizers::Token::new(MARKS[index], " x ".to_owned(), OFFSETS);
            tokenizers::Encoding::from_tokens(vec![mark], index as u32)
        };
        let marked = tokenizer.post_process(sequence(0), pair.then(|| sequence(1)), special)?;
        let marked = Encoding::from(&marked);
        let mut parts = Vec::new();
        let mut seen = [false; 2];
        for at in 0..marked.len() {
            if let Some(index) = MARKS.iter().position(|&mark| mark == marked.ids[at]) {
                let changed =
                    marked.offsets[at] != (OFFSETS.0 as u32, OFFSETS.1 as u32) || marked.special[at];
                if changed || std::mem::replace(&mut seen[index], true) {
                    return Ok(None);
                }
                parts.push(Part::Sequence {
                    index,
                    segment: marked.type_ids[at],
                    number: marked.sequences[at],
                });
                continue;
            }
            if !matches!(parts.last(), Some(Part::Special(_))) {
                parts.push(Part::Special(Encoding::default()));
            }
            if let Some(Part::Special(special)) = parts.last_mut() {
                special.extend_from(&marked, at);
            }
        }
        let added = marked.len() - if pair { 2 } else { 1 };
        let counted = if special { added_tokens(tokenizer, pair) } else { 0 };
        Ok((seen == [true, pair] && added == counted).then_some(Self { parts, added }))
    }

    fn put(&self, len: usize, mut sequences: [Option<Tokens>; 2]) -> Encoding {
        let mut all = Encoding::with_capacity(len + self.added);
        for part in &self.parts {
            match part {
                Part::Special(special) => (0..special.len()).for_each(|at| all.extend_from(special, at)),
                Part::Sequence { index, segment, number } => {
                    let Some(tokens) = sequences[*index].take() else { continue };
                    let end = all.len() + tokens.ids.len();
                    all.ids.extend(tokens.ids);
                    all.words.extend(tokens.words);
                    all.offsets.extend(tokens.offsets);
                    all.type_ids.resize(end, *segment);
                    all.special.resize(end, false);
                    all.sequences.resize(end, *number);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{Encoding as Crate, utils::truncation::truncate_encodings};

    use super::*;

    /// Compares all strategies and small lengths with the crate.
    #[test]
    fn truncated_lengths_equal_those_of_the_crate() {
        let of = |len: usize| Crate::from_tokens(vec![tokenizers::Token::new(0, "x".into(), (0, 1)); len], 0);
        let strategies =
            [TruncationStrategy::LongestFirst, TruncationStrategy::OnlyFirst, TruncationStrategy::OnlySecond];
        for strategy in strategies {
            for (first, second, room) in (0..1000).map(|at| (at / 100, at / 10 % 10, at % 10)) {
                for second in [None, Some(second)] {
                    let params = TruncationParams { max_length: room, strategy, ..Default::default() };
                    let Ok((cut, other)) = truncate_encodings(of(first), second.map(of), &params) else {
                        continue;
                    };
                    let expected = (cut.len(), other.map_or(0, |other| other.len()));
                    let found = cut_lengths(&strategy, (first, second), room);
                    assert_eq!(found.unwrap_or((first, second.unwrap_or(0))), expected);
                }
            }
        }
    }
}
