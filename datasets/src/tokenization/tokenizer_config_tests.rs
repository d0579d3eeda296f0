use tempfile::tempdir;

use std::fs;

use super::*;

fn read(config: &str, special: &str) -> Result<TokenizerConfig, DataError> {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join(CONFIG), config).unwrap();
    fs::write(folder.path().join(SPECIAL), special).unwrap();
    TokenizerConfig::read(folder.path(), |token| token.starts_with('<'))
}

#[test]
fn the_configuration_takes_precedence() {
    let config = read(
        r#"{"pad_token": {"content": "<p>", "lstrip": true}, "eos_token": "<e>", "bos_token": null, "unk_token": "",
            "extra_special_tokens": {"image": "<i>"}, "model_max_length": 1000000000000000019884624838656,
            "padding_side": "left", "truncation_side": null, "use_default_system_prompt": 3}"#,
        r#"{"pad_token": "<other>", "bos_token": {"content": "<b>"}, "unk_token": "<u>",
            "additional_special_tokens": ["<x>", {"content": "<i>"}]}"#,
    )
    .unwrap();
    let name = |name: &str| Some(name.to_owned());
    let names = SpecialNames {
        pad: name("<p>"),
        eos: name("<e>"),
        bos: name("<b>"),
        unk: name("<u>"),
        additional: vec!["<i>".to_owned(), "<x>".to_owned()],
        ..SpecialNames::default()
    };
    assert_eq!(config, TokenizerConfig { names, padding: Some(Side::Left), ..Default::default() });
    assert_eq!(read(r#"{"model_max_length": 512}"#, "{}").unwrap().max_length, Some(512));
    assert_eq!(read("{}", "{}").unwrap(), TokenizerConfig::default());
}

#[test]
fn broken_files_are_named_with_the_field() {
    for (config, special, expected) in [
        ("", "{}", "tokenizer_config.json`: expected a JSON object"),
        ("[1]", "{}", "found a different value"),
        ("{}", "{\"a\": 1, \"a\": 2}", "special_tokens_map.json`: expected a JSON object"),
        (r#"{"pad_token": 3}"#, "{}", "field `pad_token`: expected a token"),
        (r#"{"pad_token": {"text": "<p>"}}"#, "{}", "field `pad_token`"),
        (r#"{"pad_token": "unknown"}"#, "{}", "field `pad_token`: expected a token that the tokenizer.json"),
        ("{}", r#"{"additional_special_tokens": "<x>"}"#, "field `additional_special_tokens`"),
        (r#"{"model_max_length": 0}"#, "{}", "found 0"),
        (r#"{"model_max_length": "512"}"#, "{}", "field `model_max_length`"),
        (r#"{"model_input_names": ["input_ids"]}"#, "{}", "field `model_input_names`: expected a list with"),
        (r#"{"chat_template": 3}"#, "{}", "field `chat_template`: expected a template, or a list"),
        (
            r#"{"chat_template": [{"name": "../x", "template": "x"}]}"#,
            "{}",
            "field `chat_template`: expected a template, or a list",
        ),
        (r#"{"padding_side": "up"}"#, "{}", "expected \"left\" or \"right\", found \"up\""),
    ] {
        let error = read(config, special).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn writing_keeps_the_rest() {
    let folder = tempdir().unwrap();
    TokenizerConfig::default().write(folder.path()).unwrap();
    assert!(!folder.path().join(CONFIG).exists());
    fs::write(folder.path().join(CONFIG), r#"{"extra": "x", "pad_token": "<old>"}"#).unwrap();
    let names = SpecialNames { eos: Some("<e>".to_owned()), ..SpecialNames::default() };
    let config = TokenizerConfig {
        names,
        max_length: Some(77),
        truncation: Some(Side::Left),
        segments: Some(false),
        ..Default::default()
    };
    config.write(folder.path()).unwrap();
    assert_eq!(TokenizerConfig::read(folder.path(), |_| true).unwrap(), config);
    assert!(fs::read_to_string(folder.path().join(CONFIG)).unwrap().contains("extra"));
}
