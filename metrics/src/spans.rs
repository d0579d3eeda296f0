//! Extracts entities from the tags of words.

use std::str::FromStr;

use crate::{MetricError, TagFault};

/// What counts as an entity in a sequence of IOB2 tags.
///
/// A tag is `O`, or `B-` or `I-` and a type. A bare `B` or `I` has the type `_`, as in seqeval. The two schemes differ
/// in tag sequences that IOB2 does not allow, which a model may well predict:
///
/// ```
/// use firebrick_metrics::EntityScheme;
///
/// let tags = ["I-PER", "I-PER", "O", "B-LOC", "I-PER"];
/// let found = |scheme: EntityScheme| -> Result<Vec<String>, firebrick_metrics::TagFault> {
///     Ok(scheme.spans(&tags)?.iter().map(|span| format!("{} {}..{}", span.kind, span.start, span.end)).collect())
/// };
/// assert_eq!(found(EntityScheme::StrictIob2)?, ["LOC 3..4"]);
/// assert_eq!(found(EntityScheme::Conlleval)?, ["PER 0..2", "LOC 3..4", "PER 4..5"]);
/// # Ok::<(), firebrick_metrics::TagFault>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntityScheme {
    /// Only `B` begins an entity. An `I` that does not continue an entity of its type belongs to none. This is
    /// seqeval with `mode="strict"` and `scheme=IOB2`. Hyphens around a type are not part of it.
    StrictIob2,
    /// An `I` after `O` or after another type also begins an entity. This is the script of the CoNLL tasks
    /// (<https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt>), seqeval without `mode`, and therefore
    /// Hugging Face's `evaluate`.
    Conlleval,
}

/// One entity: a range of words, and its type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The index of its first word, from 0.
    pub start: usize,
    /// The index after its last word.
    pub end: usize,
    /// Its type, such as `PER`.
    pub kind: String,
}

enum Tag<'a> {
    Outside,
    Begin(&'a str),
    Inside(&'a str),
}

impl EntityScheme {
    /// Returns the entities of one sequence, in order.
    ///
    /// # Errors
    ///
    /// A [`TagFault`] for the first tag that is not an IOB2 tag.
    pub fn spans<S: AsRef<str>>(self, tags: &[S]) -> Result<Vec<Span>, TagFault> {
        let mut spans = Vec::new();
        let mut open: Option<(usize, &str)> = None;
        for (position, tag) in tags.iter().enumerate() {
            let tag = tag.as_ref();
            let parsed = self.parse(tag).ok_or_else(|| fault(tag, position))?;
            let begins = match parsed {
                Tag::Inside(kind) if open.is_some_and(|(_, before)| before == kind) => continue,
                Tag::Inside(kind) if self == Self::Conlleval => Some((position, kind)),
                Tag::Begin(kind) => Some((position, kind)),
                Tag::Inside(_) | Tag::Outside => None,
            };
            spans.extend(open.map(|(start, kind)| Span { start, end: position, kind: kind.to_owned() }));
            open = begins;
        }
        spans.extend(open.map(|(start, kind)| Span { start, end: tags.len(), kind: kind.to_owned() }));
        Ok(spans)
    }

    /// Returns the type that a tag names, if it is not `O`.
    pub(crate) fn kind_of(self, tag: &str, position: usize) -> Result<Option<&str>, TagFault> {
        match self.parse(tag) {
            None => Err(fault(tag, position)),
            Some(Tag::Outside) => Ok(None),
            Some(Tag::Begin(kind) | Tag::Inside(kind)) => Ok(Some(kind)),
        }
    }

    fn parse(self, tag: &str) -> Option<Tag<'_>> {
        let (letter, kind) = match tag.split_once('-') {
            None => (tag, "_"),
            Some((letter, kind)) if self == Self::StrictIob2 => (letter, kind.trim_matches('-')),
            Some(parts) => parts,
        };
        match letter {
            "O" if tag == "O" => Some(Tag::Outside),
            "B" if !kind.is_empty() => Some(Tag::Begin(kind)),
            "I" if !kind.is_empty() => Some(Tag::Inside(kind)),
            _ => None,
        }
    }
}

impl FromStr for EntityScheme {
    type Err = MetricError;

    /// Parses `strict` or `conlleval`.
    ///
    /// ```
    /// use firebrick_metrics::EntityScheme;
    ///
    /// assert_eq!("strict".parse(), Ok(EntityScheme::StrictIob2));
    /// assert!("bilou".parse::<EntityScheme>().is_err());
    /// ```
    fn from_str(name: &str) -> Result<Self, MetricError> {
        match name {
            "strict" => Ok(Self::StrictIob2),
            "conlleval" => Ok(Self::Conlleval),
            _ => Err(MetricError::Name {
                setting: "entity scheme",
                expected: "`strict` or `conlleval`",
                found: name.to_owned(),
            }),
        }
    }
}

fn fault(tag: &str, position: usize) -> TagFault {
    TagFault { position, found: tag.chars().take(40).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(scheme: EntityScheme, tags: &str) -> String {
        let tags: Vec<&str> = tags.split_whitespace().collect();
        let spans = scheme.spans(&tags).unwrap();
        spans
            .iter()
            .map(|span| format!("{}{}{}", span.start, span.kind, span.end))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn entities_of_both_schemes() {
        for (tags, strict, conlleval) in [
            ("", "", ""),
            ("B-A I-A O B-B", "0A2 3B4", "0A2 3B4"),
            ("B-A B-A I-A", "0A1 1A3", "0A1 1A3"),
            ("I-A I-A", "", "0A2"),
            ("B-A I-B I-A", "0A1", "0A1 1B2 2A3"),
            ("O I-A B-A O I-B", "2A3", "1A2 2A3 4B5"),
            ("B I O I", "0_2", "0_2 3_4"),
            ("B--A- I-A", "0A2", "0-A-1 1A2"),
            ("B-a-b I-a-b", "0a-b2", "0a-b2"),
        ] {
            assert_eq!(spans(EntityScheme::StrictIob2, tags), strict, "{tags}");
            assert_eq!(spans(EntityScheme::Conlleval, tags), conlleval, "{tags}");
        }
    }

    #[test]
    fn invalid_tags() {
        for tag in ["X-PER", "", "o", "O-PER", "B-", "BPER", "S-PER", "é", "-PER", "b-PER"] {
            for scheme in [EntityScheme::StrictIob2, EntityScheme::Conlleval] {
                let fault = scheme.spans(&["O", tag]).unwrap_err();
                assert_eq!(fault, TagFault { position: 1, found: tag.to_owned() });
            }
        }
        assert!(EntityScheme::StrictIob2.spans(&["B--"]).is_err());
    }
}
