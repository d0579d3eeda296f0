//! The loop: one model call per token, with all unfinished rows.

use super::beam_search::BeamSearch;
use super::samples::Samples;
use super::{Decoding, DecodingError, NextToken, Prompt, Search, Text};

impl Decoding {
    /// Generates `returned` texts for each prompt; in beam search the best come first. Beam search returns fewer if
    /// fewer texts are possible.
    ///
    /// `model` must have the same prompts in the same order; there may be none. The texts of a prompt depend on its
    /// tokens and its row, not on the other prompts. Ranks that share a model call this together; see
    /// [`NextToken::any_writes`].
    ///
    /// # Errors
    ///
    /// The settings fail the [check](Self::check), there are more beams than tokens in the vocabulary, the model
    /// failed, or its logits allow no choice of a token.
    pub fn write<M: NextToken>(&self, model: &mut M, prompts: &[Prompt]) -> Result<Vec<Vec<Text>>, M::Error> {
        self.check()?;
        let (beams, vocabulary) = (self.beams, model.vocabulary());
        if beams > vocabulary.max(1) {
            return Err(DecodingError::Beams { beams, vocabulary }.into());
        }
        let search = |prompt| -> Box<dyn Search + '_> {
            match self.beams {
                1 => Box::new(Samples::new(self, prompt)),
                _ => Box::new(BeamSearch::new(self, prompt)),
            }
        };
        let searches = prompts.iter().map(search).collect();
        let rows = prompts.len().saturating_mul(self.beams.max(self.returned));
        run(model, searches, Longest { rows, tokens: self.max_new_tokens })
    }
}

/// The maximum number of rows at once, and their maximum length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Longest {
    pub rows: usize,
    /// Tokens beyond the prompt.
    pub tokens: usize,
}

/// Advances all searches until no rank has a row left.
pub(super) fn run<M: NextToken>(
    model: &mut M,
    mut searches: Vec<Box<dyn Search + '_>>,
    longest: Longest,
) -> Result<Vec<Vec<Text>>, M::Error> {
    let vocabulary = model.vocabulary();
    // The number of rows of each search in the last call.
    let mut counts = vec![1; searches.len()];
    let (mut from, mut tokens) = (Vec::new(), Vec::new());
    let mut is_first = true;
    while model.any_writes(counts.iter().any(|count| *count > 0))? {
        let logits = if is_first { model.start()? } else { model.append(&from, &tokens)? };
        if is_first && !searches.is_empty() {
            model.require_room(longest.rows, longest.tokens)?;
        }
        is_first = false;
        let rows = counts.iter().sum::<usize>();
        if logits.len() != rows * vocabulary {
            let found = logits.len();
            return Err(DecodingError::Count { rows, vocabulary, found }.into());
        }
        let logits: Vec<_> = (0..rows).map(|row| &logits[row * vocabulary..][..vocabulary]).collect();
        let mut first = 0;
        from.clear();
        tokens.clear();
        for (search, count) in searches.iter_mut().zip(&mut counts).filter(|(_, count)| **count > 0) {
            let steps = search.advance(&logits[first..][..*count])?;
            from.extend(steps.iter().map(|step| first + step.from));
            tokens.extend(steps.iter().map(|step| step.token));
            first += *count;
            *count = steps.len();
        }
    }
    Ok(searches.into_iter().map(Search::texts).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;
    use crate::decoding::table_model::Table;
    use crate::decoding::{End, Rereading, Row};

    /// A model of tokens 0 to 3 that counts up modulo 4.
    fn counting() -> Table {
        let after = |last: usize| (0..4).map(move |token| if token == (last + 1) % 4 { 2.0 } else { 0.0 });
        Table { vocabulary: 4, logits: (0..16).flat_map(|place| after(place % 4)).collect() }
    }

    #[test]
    fn ended_rows_are_not_computed_again() {
        let (table, mut read) = (counting(), Vec::new());
        let prompts = [Prompt::new(0, [2]), Prompt::new(1, [0]), Prompt::new(2, [1])];
        let decoding = Decoding { end_tokens: vec![3], ..Decoding::default() };
        let mut model = Rereading::new(&prompts, 4, |rows: &[Row]| {
            read.push(rows.iter().map(|row| row.prompt).collect::<Vec<_>>());
            table.read(rows)
        });
        let texts = decoding.write(&mut model, &prompts).unwrap();
        let tokens: Vec<_> = texts.iter().map(|texts| texts[0].tokens.as_slice()).collect();
        assert_eq!(tokens, [&[3][..], &[1, 2, 3], &[2, 3]]);
        assert_eq!(texts[1][0].without_end(), [1, 2]);
        assert_eq!(read, [vec![0, 1, 2], vec![1, 2], vec![1]]);
    }

    #[test]
    fn a_prompt_is_computed_once_for_all_its_texts() {
        let (table, mut read) = (counting(), Vec::new());
        let prompts = [Prompt::new(0, [0]), Prompt::new(1, [1])];
        let decodings = [
            Decoding { max_new_tokens: 3, temperature: 1.0, returned: 3, ..Decoding::default() },
            Decoding { max_new_tokens: 3, beams: 3, ..Decoding::default() },
        ];
        for decoding in decodings {
            let mut model = Rereading::new(&prompts, 4, |rows: &[Row]| {
                read.push(rows.len());
                table.read(rows)
            });
            decoding.write(&mut model, &prompts).unwrap();
            assert_eq!(std::mem::take(&mut read), [2, 6, 6]);
        }
    }

    #[test]
    fn ranks_make_equal_calls_and_generate_the_same_texts() {
        let table = counting();
        // One rank has nothing to write, and the ranks end one after the other.
        let prompts = [vec![], vec![Prompt::new(0, [2])], vec![Prompt::new(1, [3]), Prompt::new(2, [1])]];
        for beams in [1, 2] {
            let decoding = Decoding { end_tokens: vec![3], beams, max_new_tokens: 6, ..Decoding::default() };
            let (barrier, writing) = (Barrier::new(3), Mutex::new([false; 3]));
            let calls = Mutex::new([0; 3]);
            let on_rank = |rank: usize| {
                let any = |here: bool| {
                    writing.lock().unwrap()[rank] = here;
                    barrier.wait();
                    let any = writing.lock().unwrap().contains(&true);
                    barrier.wait();
                    Ok(any)
                };
                let read = |rows: &[Row]| {
                    calls.lock().unwrap()[rank] += 1;
                    table.read(rows)
                };
                let mut model = Rereading::new(&prompts[rank], 4, read).among(any);
                decoding.write(&mut model, &prompts[rank]).unwrap()
            };
            let texts = std::thread::scope(|scope| {
                let on_rank = &on_rank;
                let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || on_rank(rank))).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            });
            let alone = |rows: &Vec<Prompt>| decoding.write(&mut table.model(rows), rows).unwrap();
            assert_eq!(texts, prompts.iter().map(alone).collect::<Vec<_>>());
            let [first, rest @ ..] = *calls.lock().unwrap();
            assert!(first >= 4 && rest == [first; 2], "{first} {rest:?}");
        }
    }

    #[test]
    fn without_prompts_the_model_is_not_called() {
        let mut model =
            Rereading::new(&[], 4, |_: &[Row]| Err(DecodingError::NoToken { row: 0, written: 0 }));
        assert_eq!(Decoding::default().write(&mut model, &[]), Ok(Vec::new()));
    }

    #[test]
    fn invalid_logits_stop_decoding_and_name_the_row() {
        let prompts = [Prompt::new(5, [0]), Prompt::new(6, [1])];
        let errors = [
            (f32::NAN, "row 6, after 2 tokens: the logit of token 2 must be a number"),
            (f32::NEG_INFINITY, "row 6, after 2 tokens: some logit must be above minus infinity"),
        ];
        for (wrong, expected) in errors {
            let mut table = counting();
            // After tokens 2 and 3, which the second prompt reaches first.
            let place = 2 * 4 + 3;
            let first = if wrong.is_nan() { 2 } else { 0 };
            table.logits[place * 4 + first..(place + 1) * 4].fill(wrong);
            for beams in [1, 3] {
                let decoding = Decoding { beams, ..Decoding::default() };
                let error = decoding.write(&mut table.model(&prompts), &prompts).unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        }
    }

    #[test]
    fn banning_every_token_stops_decoding_and_names_the_row() {
        let prompts = [Prompt::new(9, [0, 1])];
        for beams in [1, 2] {
            let decoding = Decoding { beams, no_repeat_ngram: 1, ..Decoding::default() };
            let error = decoding.write(&mut counting().model(&prompts), &prompts).unwrap_err();
            assert_eq!(error, DecodingError::Banned { row: 9, written: 2 });
        }
    }

    #[test]
    fn ended_texts_are_returned_if_no_beam_continues() {
        let prompts = [Prompt::new(9, [0, 1])];
        let mut table = counting();
        // After tokens 1 and 2, only token 0 is possible, and it is in the prompt.
        let place = 4 + 2;
        table.logits[place * 4 + 1..(place + 1) * 4].fill(f32::NEG_INFINITY);
        let decoding = Decoding { beams: 2, no_repeat_ngram: 1, end_tokens: vec![3], ..Decoding::default() };
        let texts = decoding.write(&mut table.model(&prompts), &prompts).unwrap();
        let ends: Vec<_> = texts[0].iter().map(|text| (text.tokens.as_slice(), text.end)).collect();
        assert_eq!(ends, [(&[3][..], End::Token)]);
    }

    #[test]
    fn a_wrong_number_of_logits_is_an_error() {
        let prompts = [Prompt::new(0, [0]), Prompt::new(1, [0])];
        let mut model = Rereading::new(&prompts, 3, |_: &[Row]| Ok(vec![0.0; 7]));
        let error: DecodingError = Decoding::default().write(&mut model, &prompts).unwrap_err();
        assert_eq!(error, DecodingError::Count { rows: 2, vocabulary: 3, found: 7 });
        let mut empty = Rereading::new(&prompts, 0, |_: &[Row]| Ok(Vec::new()));
        let error: DecodingError = Decoding::default().write(&mut empty, &prompts).unwrap_err();
        assert_eq!(error, DecodingError::NoToken { row: 0, written: 0 });
    }

    #[test]
    fn too_many_beams_fail_before_the_model_runs() {
        let mut model = Rereading::new(&[], 4, |_: &[Row]| Ok::<_, DecodingError>(Vec::new()));
        let with = |beams| Decoding { beams, ..Decoding::default() };
        let error = with(5).write(&mut model, &[]).unwrap_err();
        assert_eq!(error, DecodingError::Beams { beams: 5, vocabulary: 4 });
        assert_eq!(with(4).write(&mut model, &[]), Ok(Vec::new()));
    }

    #[test]
    fn invalid_settings_fail_before_the_model_runs() {
        let mut model = Rereading::new(&[], 4, |_: &[Row]| Ok::<_, DecodingError>(Vec::new()));
        let error = Decoding { beams: 0, ..Decoding::default() }.write(&mut model, &[]).unwrap_err();
        assert!(matches!(error, DecodingError::Setting { field: "beams", .. }));
    }
}
