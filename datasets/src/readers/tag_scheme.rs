//! Converts entity labels to IOB2.

use serde::{Deserialize, Serialize};

/// A scheme by which labels of words mark the beginnings and ends of entities.
///
/// A label is `O`, or a letter, a hyphen and a type, such as `B-person`.
///
/// # Example
///
/// Two persons, of one and two words, with no word between them:
///
/// ```
/// use firebrick_datasets::TagScheme;
///
/// let iob2 = ["B-PER", "B-PER", "I-PER", "O"];
/// assert_eq!(TagScheme::Iob1.to_iob2(&["I-PER", "B-PER", "I-PER", "O"])?, iob2);
/// assert_eq!(TagScheme::Iob2.to_iob2(&iob2)?, iob2);
/// assert_eq!(TagScheme::Iobes.to_iob2(&["S-PER", "B-PER", "E-PER", "O"])?, iob2);
/// # Ok::<(), firebrick_datasets::TagFault>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TagScheme {
    /// `I` is inside an entity; `B` begins an entity directly after another of the same type. (Ramshaw and Marcus,
    /// 1995; CoNLL-2003.)
    Iob1,
    /// `B` begins each entity, `I` continues it. Also called BIO.
    Iob2,
    /// `B` begins an entity, `I` continues it, `E` ends it; `S` is a single-word entity. Also called BIOES. BILOU, with
    /// `L` for `E` and `U` for `S`, is accepted too.
    Iobes,
}

/// What to do with the labels of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Tags {
    /// Keep them as they are, the default. They need not mark entities.
    #[default]
    Keep,
    /// Detect the scheme from all of the data, and convert them to IOB2.
    Detect,
    /// Convert them from this scheme to IOB2.
    From(TagScheme),
}

/// A label that is invalid in its scheme.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "label {index}: expected {expected}, found {found}; correct the label, or specify a different scheme"
)]
pub struct TagFault {
    /// The index of the label in its sentence, from 0.
    pub index: usize,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

/// Evidence for the scheme of the sentences read so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Evidence {
    /// A letter occurred that only IOBES has.
    iobes: bool,
    /// A `B` occurred where IOB1 has an `I`.
    iob2: bool,
    /// An `I` occurred where IOB2 has a `B`.
    iob1: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Tag<'a> {
    Outside,
    /// The letter, as in IOBES, and the type.
    Inside(u8, &'a str),
}

impl TagScheme {
    /// Converts the labels of one sentence to IOB2.
    ///
    /// Label sequences that are invalid in the scheme are read as `conlleval` reads them
    /// (<https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt>): an entity begins at `B` and `S`, and at
    /// any other letter after `O`, after another type, after `E` and after `S`. For example, `O I-PER` becomes
    /// `O B-PER`.
    ///
    /// # Errors
    ///
    /// [`TagFault`] if a label has a letter that the scheme lacks, or no type.
    pub fn to_iob2<S: AsRef<str>>(self, labels: &[S]) -> Result<Vec<String>, TagFault> {
        let mut previous = Tag::Outside;
        let mut converted = Vec::with_capacity(labels.len());
        for (index, label) in labels.iter().enumerate() {
            let tag = self.parse(label.as_ref()).map_err(|expected| TagFault {
                index,
                expected,
                found: format!("{:?}", brief(label.as_ref())),
            })?;
            converted.push(match tag {
                Tag::Outside => "O".to_owned(),
                Tag::Inside(_, kind) if begins(previous, tag) => format!("B-{kind}"),
                Tag::Inside(_, kind) => format!("I-{kind}"),
            });
            previous = tag;
        }
        Ok(converted)
    }

    /// Detects the scheme of these sentences.
    ///
    /// It is IOBES if a letter occurs that only IOBES has; otherwise IOB2 if some `B` does not directly follow an
    /// entity of its type; otherwise IOB1 if some entity begins with `I`; otherwise IOB2. Labels that are invalid in
    /// every scheme are ignored; [`to_iob2`](Self::to_iob2) reports them.
    pub fn detect<S: AsRef<str>>(sentences: impl IntoIterator<Item = impl AsRef<[S]>>) -> Self {
        let mut evidence = Evidence::default();
        for labels in sentences {
            evidence.add(labels.as_ref());
        }
        evidence.scheme()
    }

    fn parse(self, label: &str) -> Result<Tag<'_>, String> {
        if label == "O" {
            return Ok(Tag::Outside);
        }
        let letters = match self {
            Self::Iob1 | Self::Iob2 => "`B-` or `I-`",
            Self::Iobes => "`B-`, `I-`, `E-` or `S-` (`L-` or `U-`)",
        };
        let letter = match label.as_bytes() {
            [letter @ (b'B' | b'I'), b'-', _, ..] => *letter,
            [b'E' | b'L', b'-', _, ..] if self == Self::Iobes => b'E',
            [b'S' | b'U', b'-', _, ..] if self == Self::Iobes => b'S',
            _ => return Err(format!("`O`, or {letters} and a type")),
        };
        Ok(Tag::Inside(letter, label.get(2..).unwrap_or_default()))
    }
}

impl TagScheme {
    /// Returns whether a label is valid in some scheme.
    pub(super) fn is_tag(label: &str) -> bool {
        Self::Iobes.parse(label).is_ok()
    }
}

impl Evidence {
    /// Adds the evidence of one sentence.
    pub(super) fn add<S: AsRef<str>>(&mut self, labels: &[S]) {
        let mut previous = Tag::Outside;
        for label in labels {
            let Ok(tag) = TagScheme::Iobes.parse(label.as_ref()) else {
                previous = Tag::Outside;
                continue;
            };
            if let Tag::Inside(letter, kind) = tag {
                let follows = matches!(previous, Tag::Inside(_, before) if before == kind);
                self.iobes |= letter == b'E' || letter == b'S';
                self.iob2 |= letter == b'B' && !follows;
                self.iob1 |= letter == b'I' && !follows;
            }
            previous = tag;
        }
    }

    pub(super) fn scheme(self) -> TagScheme {
        match self {
            Self { iobes: true, .. } => TagScheme::Iobes,
            Self { iob2: false, iob1: true, .. } => TagScheme::Iob1,
            _ => TagScheme::Iob2,
        }
    }
}

/// Returns whether an entity begins with this tag.
fn begins(previous: Tag, tag: Tag) -> bool {
    let Tag::Inside(letter, kind) = tag else { return false };
    let goes_on = matches!(previous, Tag::Inside(b'B' | b'I', before) if before == kind);
    letter == b'B' || letter == b'S' || !goes_on
}

fn brief(label: &str) -> String {
    label.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(labels: &str) -> Vec<&str> {
        labels.split(' ').collect()
    }

    fn iob2(scheme: TagScheme, labels: &str) -> String {
        scheme.to_iob2(&split(labels)).unwrap().join(" ")
    }

    #[test]
    fn conversions() {
        for (scheme, from, to) in [
            (TagScheme::Iob1, "I-A I-A I-B O B-B I-B B-B", "B-A I-A B-B O B-B I-B B-B"),
            (TagScheme::Iob2, "B-A B-A I-A O", "B-A B-A I-A O"),
            (TagScheme::Iobes, "S-A B-A I-A E-A O S-B", "B-A B-A I-A I-A O B-B"),
            (TagScheme::Iobes, "U-A B-A I-A L-A U-a-b", "B-A B-A I-A I-A B-a-b"),
        ] {
            assert_eq!(iob2(scheme, from), to);
        }
    }

    #[test]
    fn tags_outside_a_scheme_follow_conlleval() {
        assert_eq!(iob2(TagScheme::Iob2, "O I-A I-B I-B"), "O B-A B-B I-B");
        assert_eq!(iob2(TagScheme::Iobes, "E-A E-A I-A S-A I-A E-A"), "B-A B-A B-A B-A B-A I-A");
    }

    #[test]
    fn impossible_labels() {
        for (scheme, label) in [
            (TagScheme::Iob2, "X-PER"),
            (TagScheme::Iob2, "B-"),
            (TagScheme::Iob2, "B"),
            (TagScheme::Iob2, "BPER"),
            (TagScheme::Iob2, ""),
            (TagScheme::Iob1, "S-PER"),
            (TagScheme::Iobes, "o"),
            (TagScheme::Iobes, "é-PER"),
        ] {
            let fault = scheme.to_iob2(&["O", label]).unwrap_err();
            assert_eq!((fault.index, fault.found), (1, format!("{label:?}")));
        }
    }

    #[test]
    fn detection() {
        for (labels, scheme) in [
            ("O O", TagScheme::Iob2),
            ("noun verb", TagScheme::Iob2),
            ("O B-A I-A", TagScheme::Iob2),
            ("O I-A B-A I-A", TagScheme::Iob1),
            ("B-A O I-A", TagScheme::Iob2),
            ("B-A E-A", TagScheme::Iobes),
            ("O U-A", TagScheme::Iobes),
        ] {
            assert_eq!(TagScheme::detect([split(labels)]), scheme, "{labels}");
        }
    }

    /// Generates the entities of one sentence: the number of outside words before each, its number of words, and its
    /// type.
    fn entities() -> impl Strategy<Value = Vec<(usize, usize, char)>> {
        proptest::collection::vec((0..3_usize, 1..4_usize, proptest::sample::select(vec!['A', 'B'])), 0..8)
    }

    proptest! {
        #[test]
        fn all_schemes_convert_to_the_same_tags(entities in entities()) {
            let (mut iob1, mut iob2, mut iobes) = (Vec::new(), Vec::new(), Vec::new());
            let mut last = None;
            for &(outside, words, kind) in &entities {
                for labels in [&mut iob1, &mut iob2, &mut iobes] {
                    labels.extend(vec!["O".to_owned(); outside]);
                }
                for word in 0..words {
                    let follows = outside == 0 && last == Some(kind);
                    let add = |labels: &mut Vec<String>, letter| labels.push(format!("{letter}-{kind}"));
                    add(&mut iob1, if word == 0 && follows { 'B' } else { 'I' });
                    add(&mut iob2, if word == 0 { 'B' } else { 'I' });
                    add(&mut iobes, match (word, words - word) {
                        (0, 1) => 'S',
                        (0, _) => 'B',
                        (_, 1) => 'E',
                        _ => 'I',
                    });
                }
                last = Some(kind);
            }
            prop_assert_eq!(&TagScheme::Iob1.to_iob2(&iob1).unwrap(), &iob2);
            prop_assert_eq!(&TagScheme::Iob2.to_iob2(&iob2).unwrap(), &iob2);
            prop_assert_eq!(&TagScheme::Iobes.to_iob2(&iobes).unwrap(), &iob2);
            prop_assert_eq!(TagScheme::detect([&iob2]), TagScheme::Iob2);
        }
    }
}
