//! Perplexity of long texts, by windows that overlap.

use firebrick_datasets::{Amount, Skipped, Tokenizer, counted};

use super::Measured;
use super::likelihood::{Likelihood, Row};
use crate::console::with_progress;
use crate::{MeasureError, Run, RunError};
use firebrick_tasks::{Paths, Writing, progress_of, tell_skipped};

/// How a text is cut into windows. Each token but a text's first is predicted once, from at least `window - stride` tokens
/// before it where the text has as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Windows {
    window: usize,
    stride: usize,
}

impl Windows {
    /// # Errors
    ///
    /// A size is out of range.
    fn of(window: usize, stride: Option<usize>, positions: Option<usize>) -> Result<Self, MeasureError> {
        let stride = stride.unwrap_or(window.div_ceil(2));
        let most = positions.unwrap_or(usize::MAX);
        let setting = |setting, expected, found| MeasureError::Setting { setting, expected, found };
        if !(2..=most).contains(&window) {
            let expected = match positions {
                Some(most) => format!("at least 2 and at most {most}, the tokens that the model reads"),
                None => "at least 2".into(),
            };
            return Err(setting("window", expected, window));
        }
        if !(1..window).contains(&stride) {
            let expected = format!("at least 1 and below the window, which has {window} tokens");
            return Err(setting("stride", expected, stride));
        }
        Ok(Self { window, stride })
    }

    /// Cuts a text. In each window the tokens count that no window before had.
    fn cut(self, ids: &[u32]) -> Vec<Row> {
        let (mut rows, mut done) = (Vec::new(), 0);
        for start in (0..ids.len()).step_by(self.stride) {
            let end = (start + self.window).min(ids.len());
            rows.push(Row { ids: ids[start..end].to_vec(), counted: end - done });
            done = end;
            if end == ids.len() {
                break;
            }
        }
        rows
    }
}

/// Returns the texts of the files, each of which is measured by itself: a plain text file, or a record.
fn texts(
    run: &Run,
    tokenizer: &Tokenizer,
    paths: &Paths,
    say: &dyn Fn(&str),
) -> Result<Vec<String>, RunError> {
    if run.data.is_plain_text(paths) {
        return Ok(run.data.plain_texts(paths, say)?);
    }
    let reader = paths.open(run.data.format.as_ref())?;
    let (skipped, mut texts) = (Skipped::default(), Vec::new());
    for part in 0..reader.parts() {
        for record in reader.open(part)? {
            let text = record.and_then(|record| {
                let text = run.task.measured_text(&record, tokenizer);
                text.map_err(|error| error.about(record.place()))
            });
            texts.extend(run.data.malformed.keep(text, &skipped)?);
        }
    }
    tell_skipped(&skipped, say);
    Ok(texts)
}

/// Measures the perplexity of the files.
pub(super) fn perplexity(
    run: &Run,
    model: &Likelihood,
    paths: &Paths,
    (window, stride): (Option<usize>, Option<usize>),
    begins: bool,
    say: &dyn Fn(&str),
) -> Result<Measured, RunError> {
    let special = model.tokenizer.special();
    let begin = special.bos.or(special.eos).filter(|_| begins);
    if begins && begin.is_none() {
        return Err(MeasureError::NoBeginToken.into());
    }
    let window = window.or(model.positions).or(run.data.block);
    let windows = Windows::of(window.unwrap_or(1024), stride, model.positions)?;
    let texts = texts(run, &model.tokenizer, paths, say)?;
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    // A chat template writes all special tokens.
    let surround = match run.task.writing() {
        Some(Writing::Answer) => None,
        _ => Some(model.tokenizer.surround(None)?),
    };
    let begun = |ids: Vec<u32>| {
        let mut ids = match &surround {
            Some(surround) => surround.put(ids),
            None => ids,
        };
        if let Some(begin) = begin.filter(|begin| ids.first() != Some(begin)) {
            ids.insert(0, begin);
        }
        ids
    };
    let ids = with_progress("tokenizing", || model.tokenizer.encode_each(&borrowed))?;
    let rows: Vec<Row> = ids.into_iter().flat_map(|ids| windows.cut(&begun(ids))).collect();
    let Windows { window, stride } = windows;
    say(&format!("{} of {window} tokens, {stride} apart", counted(rows.len(), "window")));
    let together = match run.batch.amount() {
        Amount::Samples(samples) => samples,
        Amount::Tokens(tokens) => tokens / window,
    };
    let mut progress = progress_of(say, "windows", rows.len());
    let (mut sum, mut tokens, mut done, mut rows) = (0.0, 0, 0, rows.into_iter());
    loop {
        let some: Vec<Row> = rows.by_ref().take(together.max(1)).collect();
        if some.is_empty() {
            break;
        }
        done += some.len();
        let (loss, items) = model.of(some)?;
        (sum, tokens) = (sum + loss, tokens + items);
        progress(done);
    }
    if tokens == 0 {
        return Err(MeasureError::Nothing.into());
    }
    let loss = sum / tokens as f64;
    let scores = [("loss", loss), ("perplexity", loss.exp())];
    Ok(Measured::new("perplexity", scores, [("texts", texts.len()), ("tokens", tokens)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_but_the_first_counts_once() {
        for (length, window, stride) in [(10, 4, 2), (10, 4, 3), (9, 4, 1), (3, 8, 4), (8, 4, 2), (1, 4, 2)] {
            let windows = Windows::of(window, Some(stride), None).unwrap();
            let rows = windows.cut(&(0..length).collect::<Vec<u32>>());
            let counted = rows.iter().flat_map(|row| row.ids[row.ids.len() - row.counted..].to_vec());
            assert_eq!(counted.collect::<Vec<_>>(), (0..length).collect::<Vec<_>>());
            // Only the first token of the text has nothing before it.
            let unseen = rows.iter().filter(|row| row.counted == row.ids.len()).count();
            assert_eq!(unseen, 1, "{length} tokens, window {window}, stride {stride}");
            assert!(rows.iter().skip(1).all(|row| row.ids.len() <= window));
        }
        assert!(Windows::of(4, None, None).unwrap().cut(&[]).is_empty());
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert_eq!(Windows::of(5, None, Some(5)).unwrap(), Windows { window: 5, stride: 3 });
        for (window, stride, option) in
            [(1, None, "window"), (6, None, "window"), (4, Some(4), "stride"), (4, Some(0), "stride")]
        {
            let error = Windows::of(window, stride, Some(5)).unwrap_err();
            assert!(matches!(error, MeasureError::Setting { setting, .. } if setting == option), "{error}");
        }
    }
}
