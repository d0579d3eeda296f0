//! Entities: precision, recall and F1 over exact spans.

use std::collections::BTreeSet;

use crate::counts::whole_numbers;
use crate::pairs::check_pairs;
use crate::report::{Tally, share};
use crate::{EntityScheme, Metric, MetricError, Report, Side, Span, TagFault};

/// Precision, recall and F1 of entities, for named-entity recognition and chunking, computed like seqeval.
///
/// An entity is correct if its first word, its last word and its type are (Tjong Kim Sang and De Meulder,
/// 2003, <https://aclanthology.org/W03-0419/>). [`EntityScheme`] defines what an entity is.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Entities, EntityScheme, Metric};
///
/// let mut entities = Entities::new(EntityScheme::Conlleval, ["LOC", "PER"]);
/// let predicted = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "I-LOC", "O"]];
/// let reference = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O", "O"]];
/// entities.add(&predicted, &reference)?;
///
/// let report = entities.score();
/// assert_eq!(report.micro_average.f1, 2.0 / 3.0);
/// assert_eq!(report.class("LOC").map(|class| (class.scores.recall, class.support)), Some((0.5, 2)));
/// assert_eq!(report.accuracy, 7.0 / 8.0);
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Entities {
    scheme: EntityScheme,
    /// Sorted, so that ranks with the same types have the same order of counts.
    types: Vec<String>,
    /// One tally for each type.
    tallies: Vec<Tally>,
    correct_tags: u64,
    tags: u64,
}

impl Entities {
    /// Creates a metric for entities of these types, such as `PER`, in any order.
    ///
    /// Name the types of the model and of the references; a type that never occurs changes no score. Naming them in
    /// advance gives all ranks the same counts, even for types that some ranks never see.
    pub fn new<N: Into<String>>(scheme: EntityScheme, types: impl IntoIterator<Item = N>) -> Self {
        let types: BTreeSet<String> = types.into_iter().map(Into::into).collect();
        let tallies = vec![Tally::default(); types.len()];
        Self { scheme, types: types.into_iter().collect(), tallies, correct_tags: 0, tags: 0 }
    }

    /// Creates a metric for the entity types in these tags, such as `O`, `B-PER` and `I-PER`.
    ///
    /// # Errors
    ///
    /// A [`TagFault`] for the first tag that is not an IOB2 tag.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_metrics::{Entities, EntityScheme};
    ///
    /// let entities = Entities::from_tags(EntityScheme::StrictIob2, ["O", "B-PER", "I-PER", "B-LOC"])?;
    /// assert_eq!(entities.types(), ["LOC", "PER"]);
    /// # Ok::<(), firebrick_metrics::TagFault>(())
    /// ```
    pub fn from_tags<S: AsRef<str>>(
        scheme: EntityScheme,
        tags: impl IntoIterator<Item = S>,
    ) -> Result<Self, TagFault> {
        let mut types = BTreeSet::new();
        for (position, tag) in tags.into_iter().enumerate() {
            types.extend(scheme.kind_of(tag.as_ref(), position)?.map(str::to_owned));
        }
        Ok(Self::new(scheme, types))
    }

    /// Returns the counted types, sorted.
    pub fn types(&self) -> &[String] {
        &self.types
    }

    /// Adds sequences of predicted tags and the tags of the references.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] or [`MetricError::SequenceLength`] if predictions and references differ in number,
    /// [`MetricError::Tag`] for a tag that is not an IOB2 tag, [`MetricError::EntityType`] for a type that is not
    /// counted. Each error names the sequence in this call. In all cases nothing is added.
    pub fn add<P, R, S, T>(&mut self, predictions: &[P], references: &[R]) -> Result<(), MetricError>
    where
        P: AsRef<[S]>,
        R: AsRef<[T]>,
        S: AsRef<str>,
        T: AsRef<str>,
    {
        check_pairs(predictions, references)?;
        let mut batch = Self::new(self.scheme, self.types.clone());
        for (sequence, (predicted, reference)) in predictions.iter().zip(references).enumerate() {
            batch.add_sequence(sequence, predicted.as_ref(), reference.as_ref())?;
        }
        self.merge(&batch)
    }

    fn add_sequence<S: AsRef<str>, T: AsRef<str>>(
        &mut self,
        sequence: usize,
        predicted: &[S],
        reference: &[T],
    ) -> Result<(), MetricError> {
        if predicted.len() != reference.len() {
            let (predicted, reference) = (predicted.len(), reference.len());
            return Err(MetricError::SequenceLength { sequence, predicted, reference });
        }
        let found = self.scheme.spans(predicted);
        let found = found.map_err(|fault| MetricError::Tag { side: Side::Prediction, sequence, fault })?;
        let wanted = self.scheme.spans(reference);
        let wanted = wanted.map_err(|fault| MetricError::Tag { side: Side::Reference, sequence, fault })?;
        for span in &found {
            let tally = self.tally(span, Side::Prediction, sequence)?;
            tally.predicted += 1;
            // Spans are sorted by their first words.
            tally.correct += u64::from(wanted.binary_search(span).is_ok());
        }
        for span in &wanted {
            self.tally(span, Side::Reference, sequence)?.support += 1;
        }
        let pairs = predicted.iter().zip(reference);
        let right = pairs.filter(|(predicted, reference)| predicted.as_ref() == reference.as_ref());
        self.correct_tags += right.count() as u64;
        self.tags += reference.len() as u64;
        Ok(())
    }

    fn tally(&mut self, span: &Span, side: Side, sequence: usize) -> Result<&mut Tally, MetricError> {
        let place = self.types.binary_search(&span.kind);
        match place.ok().and_then(|place| self.tallies.get_mut(place)) {
            Some(tally) => Ok(tally),
            None => Err(MetricError::EntityType {
                side,
                sequence,
                position: span.start,
                found: span.kind.clone(),
                known: self.types.join(", "),
            }),
        }
    }
}

impl Metric for Entities {
    type Score = Report;

    const NAME: &'static str = "entities";

    /// Returns the scores per type, their averages, and the share of correct tags. Types are sorted.
    ///
    /// If neither predictions nor references have an entity, precision, recall and F1 are 0.
    fn score(&self) -> Report {
        let tallies = self.tallies.iter().copied();
        Report::new(self.types.iter().zip(tallies), share(self.correct_tags, self.tags))
    }

    /// Returns, for each type, the correct entities, the predicted ones and those in the references; then the number of
    /// correct tags and of all tags.
    fn counts(&self) -> Vec<f64> {
        let tallies = self.tallies.iter().flat_map(|tally| [tally.correct, tally.predicted, tally.support]);
        tallies.chain([self.correct_tags, self.tags]).map(|count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let mut entities = Self::new(settings.scheme, settings.types.clone());
        let mut counts = whole_numbers(Self::NAME, counts, 3 * entities.types.len() + 2)?.into_iter();
        let mut next = || counts.next().unwrap_or_default();
        for tally in &mut entities.tallies {
            *tally = Tally { correct: next(), predicted: next(), support: next() };
        }
        entities.correct_tags = next();
        entities.tags = next();
        Ok(entities)
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.types == other.types
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entities() -> Entities {
        Entities::new(EntityScheme::StrictIob2, ["PER", "LOC"])
    }

    #[test]
    fn errors_name_the_place_and_nothing_is_added() {
        let mut entities = entities();
        let none: [&[&str]; 0] = [];
        let error = |entities: &mut Entities, predicted: &[&[&str]], reference: &[&[&str]]| {
            entities.add(predicted, reference).unwrap_err().to_string()
        };
        for (predicted, reference, part) in [
            (
                &[&["O"][..], &["O", "X-PER"]][..],
                &[&["O"][..], &["O", "O"]][..],
                "prediction of sequence 1: tag 1",
            ),
            (&[&["O"]], &[&["I"], &[]], "1 predictions and 2 references"),
            (&[&["B-PER"], &["O"]], &[&["B-PER"], &["O", "O"]], "sequence 1: expected as many"),
            (
                &[&["O", "B-PER"]],
                &[&["O", "B-ORG"]],
                "reference of sequence 0, tag 1: expected an entity of type LOC, PER",
            ),
        ] {
            let message = error(&mut entities, predicted, reference);
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(entities, self::entities());
        entities.add(&none, &none).unwrap();
        assert_eq!(entities.score().micro_average.f1, 0.0);
    }

    #[test]
    fn other_settings_are_not_merged() {
        let mut entities = entities();
        assert!(entities.merge(&Entities::new(EntityScheme::Conlleval, ["PER", "LOC"])).is_err());
        assert!(entities.merge(&Entities::new(EntityScheme::StrictIob2, ["PER"])).is_err());
        assert!(entities.merge(&Entities::new(EntityScheme::StrictIob2, ["LOC", "PER"])).is_ok());
    }
}
