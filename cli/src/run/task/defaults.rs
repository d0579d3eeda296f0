//! The usual names of fields.

pub(super) fn text() -> String {
    "text".into()
}

pub(super) fn label() -> String {
    "label".into()
}
