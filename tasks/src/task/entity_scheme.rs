//! The scheme by which labels of words mark entities.

use firebrick_datasets::{Record, TagScheme};

/// Returns the scheme of the labels in a field, as far as these records show it; `None` if the labels mark no entities.
pub fn entity_scheme<'r>(records: impl IntoIterator<Item = &'r Record>, field: &str) -> Option<TagScheme> {
    let mut sentences = Vec::new();
    for record in records {
        let labels = record.texts(field).ok()?;
        // BIOES has the letters of all schemes.
        TagScheme::Iobes.to_iob2(&labels).ok()?;
        sentences.push(labels);
    }
    let has_entities = sentences.iter().flatten().any(|label| *label != "O");
    has_entities.then(|| TagScheme::detect(sentences))
}

/// Returns what to say about labels in a scheme that scores do not read, with the remedy; `None` for IOB2.
pub(super) fn unread_scheme(scheme: TagScheme, is_conll: bool) -> Option<String> {
    let name = match scheme {
        TagScheme::Iob2 => return None,
        TagScheme::Iob1 => "IOB1",
        TagScheme::Iobes => "IOBES (BIOES, BILOU)",
    };
    let remedy = match is_conll {
        true => "`data.format: Conll(tags: Detect)` converts them",
        false => "convert them, as `TagScheme::to_iob2` of firebrick-datasets does",
    };
    Some(format!("the labels mark entities in {name}, and the F1 of entities is that of IOB2: {remedy}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use firebrick_datasets::{RecordPlace, Value};

    use super::*;

    fn scheme(sentences: &[&str]) -> Option<TagScheme> {
        let record = |labels: &&str| {
            let place = RecordPlace { file: Path::new("x").into(), line: 1 };
            let labels = labels.split(' ').map(|label| Value::Text(label.into())).collect();
            Record::new(place, vec![("labels".into(), Value::List(labels))])
        };
        let records: Vec<_> = sentences.iter().map(record).collect();
        entity_scheme(&records, "labels")
    }

    #[test]
    fn only_entities_have_a_scheme() {
        assert_eq!(scheme(&["O I-PER I-PER", "I-LOC O"]), Some(TagScheme::Iob1));
        assert_eq!(scheme(&["O B-PER I-PER", "B-LOC O"]), Some(TagScheme::Iob2));
        assert_eq!(scheme(&["O O", "B-LOC E-LOC"]), Some(TagScheme::Iobes));
        assert_eq!([scheme(&["DT NN"]), scheme(&["O O"]), scheme(&[])], [None; 3]);
    }
}
