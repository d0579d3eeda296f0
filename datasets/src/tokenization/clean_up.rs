//! Removes spaces from decoded text, as transformers does if `clean_up_tokenization_spaces` is set.

/// The texts that are replaced, in this order.
const REPLACED: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// Removes the spaces that tokenizers of words put before punctuation and contractions.
pub(super) fn clean_up(text: String) -> String {
    REPLACED
        .iter()
        .fold(text, |text, (from, to)| if text.contains(from) { text.replace(from, to) } else { text })
}
