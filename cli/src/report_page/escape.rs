//! Escapes text of a run for a page.

/// Escapes text, so that no text is parsed as markup, within elements and within quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML does not allow these, and they have no glyph.
            '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}' => escaped.push('\u{fffd}'),
            // These would change the direction of the text around them.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Escapes the first `most` characters.
pub(crate) fn escape_start(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => escape(text.get(..end).unwrap_or_default()) + "\u{2026}",
        None => escape(text),
    }
}

/// JSON for a script element: nothing in it ends the element.
pub(crate) fn json_in_script(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(
            escape("<b a=\"1\" c='2'>&\u{1}\n"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}\n"
        );
        assert_eq!(escape("\u{202e}drow"), "\u{fffd}drow");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(escape_start("äöü", 3), "äöü");
        assert_eq!(escape_start("äöü", 2), "äö…");
    }

    #[test]
    fn json_does_not_end_its_element() {
        let value = serde_json::json!({"name": "</script><!--&"});
        let json = json_in_script(&value);
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }
}
