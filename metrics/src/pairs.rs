//! Pairs predictions with references and checks them before any is counted.

use crate::MetricError;

/// Pairs each prediction with its references, at least one.
pub(crate) fn pairs<'a, P, R, S>(
    predictions: &'a [P],
    references: &'a [R],
) -> Result<impl Iterator<Item = (&'a str, &'a [S])>, MetricError>
where
    P: AsRef<str>,
    R: AsRef<[S]>,
    S: AsRef<str> + 'a,
{
    if let Some(segment) = references.iter().position(|references| references.as_ref().is_empty()) {
        return Err(MetricError::NoReference { segment });
    }
    pairs_or_none(predictions, references)
}

/// Pairs each prediction with its references, possibly none.
pub(crate) fn pairs_or_none<'a, P, R, S>(
    predictions: &'a [P],
    references: &'a [R],
) -> Result<impl Iterator<Item = (&'a str, &'a [S])>, MetricError>
where
    P: AsRef<str>,
    R: AsRef<[S]>,
    S: AsRef<str> + 'a,
{
    check_pairs(predictions, references)?;
    Ok(predictions.iter().map(AsRef::as_ref).zip(references.iter().map(AsRef::as_ref)))
}

/// Checks that there are as many references as predictions.
pub(crate) fn check_pairs<P, R>(predictions: &[P], references: &[R]) -> Result<(), MetricError> {
    match (predictions.len(), references.len()) {
        (predictions, references) if predictions != references => {
            Err(MetricError::Pairs { predictions, references })
        }
        _ => Ok(()),
    }
}
