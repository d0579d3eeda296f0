//! What is read, refused and written of `config.json`.

use serde_json::json;

use super::*;
use crate::testing::has_defaults_of_class;

#[test]
fn invalid_settings_are_named() {
    for (fields, field) in [
        (r#"{"num_key_value_heads": 5}"#, "num_key_value_heads"),
        (r#"{"num_attention_heads": 3}"#, "num_attention_heads"),
        (r#"{"num_attention_heads": 0}"#, "num_attention_heads"),
        (r#"{"head_dim": 5}"#, "head_dim"),
        (r#"{"model_type": "mistral", "sliding_window": 0}"#, "sliding_window"),
        (
            r#"{"model_type": "qwen2", "use_sliding_window": true, "layer_types": ["full_attention"]}"#,
            "layer_types",
        ),
        (r#"{"attention_dropout": -0.1}"#, "attention_dropout"),
        (r#"{"model_type": "gemma2", "num_attention_heads": 7}"#, "num_attention_heads"),
        (r#"{"model_type": "gemma2", "sliding_window": null}"#, "sliding_window"),
        (r#"{"model_type": "gemma2", "sliding_window": 0}"#, "sliding_window"),
        (r#"{"model_type": "gemma2", "layer_types": ["full_attention"]}"#, "layer_types"),
        (r#"{"model_type": "gemma2", "mlp_bias": true}"#, "mlp_bias"),
        (r#"{"model_type": "gemma2", "attn_logit_softcapping": 0.0}"#, "attn_logit_softcapping"),
        (r#"{"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}"#, "attn_logit_softcapping"),
        (r#"{"model_type": "gemma3_text", "sliding_window_pattern": 0}"#, "sliding_window_pattern"),
        (r#"{"model_type": "gemma3_text", "rope_local_base_freq": "low"}"#, "rope_local_base_freq"),
        (r#"{"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e6}}"#, "rope_parameters"),
        (
            r#"{"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "linear"}}}"#,
            "rope_parameters",
        ),
        (
            r#"{"model_type": "gemma3_text", "rope_local_base_freq": 5.0, "rope_parameters":
                {"full_attention": null, "sliding_attention": {"rope_theta": 6.0}}}"#,
            "rope_local_base_freq",
        ),
        (
            r#"{"model_type": "qwen3", "rope_parameters": {"full_attention": {"rope_theta": 6.0}}}"#,
            "rope_parameters",
        ),
        (r#"{"model_type": "mistral", "partial_rotary_factor": 0.5}"#, "partial_rotary_factor"),
        (r#"{"model_type": "phi3", "resid_pdrop": 0.1}"#, "resid_pdrop"),
        (r#"{"model_type": "phi3", "embd_pdrop": 0.1}"#, "embd_pdrop"),
        (r#"{"model_type": "phi3", "attention_bias": true}"#, "attention_bias"),
        (r#"{"model_type": "phi3", "partial_rotary_factor": 0.01}"#, "partial_rotary_factor"),
        (r#"{"model_type": "phi3", "partial_rotary_factor": "all"}"#, "partial_rotary_factor"),
        (
            r#"{"model_type": "phi3", "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}"#,
            "rope_scaling",
        ),
    ] {
        let config: LlamaConfig = serde_json::from_str(fields).unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    for fields in [
        r#"{"num_attention_heads": 3, "head_dim": 6}"#,
        r#"{"model_type": "mistral", "sliding_window": 1024}"#,
        r#"{"model_type": "qwen2", "sliding_window": 0, "use_sliding_window": false}"#,
        r#"{"sliding_window": 0}"#,
        r#"{"model_type": "qwen3", "num_attention_heads": 3, "num_key_value_heads": null}"#,
        r#"{"model_type": "gemma2"}"#,
        r#"{"model_type": "gemma3_text"}"#,
        r#"{"model_type": "gemma2", "num_hidden_layers": 1, "sliding_window": null,
            "layer_types": ["full_attention"]}"#,
        r#"{"model_type": "phi3", "partial_rotary_factor": 0.5, "resid_pdrop": 0.0}"#,
    ] {
        assert!(serde_json::from_str::<LlamaConfig>(fields).unwrap().check().is_ok(), "{fields}");
    }
}

/// The windows of transformers' `configuration_mistral.py` and `configuration_qwen2.py`.
#[test]
fn windows_by_family() {
    let windows = |fields: &str| {
        let config: LlamaConfig = serde_json::from_str(fields).unwrap();
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<LlamaConfig>(written).unwrap(), config, "it is written as read");
        [0, 1, 27, 28].map(|block| config.window(block).unwrap())
    };
    assert_eq!(windows(r#"{"sliding_window": 9}"#), [None; 4]);
    assert_eq!(windows(r#"{"model_type": "mistral"}"#), [Some(4096); 4]);
    assert_eq!(windows(r#"{"model_type": "mistral", "sliding_window": null}"#), [None; 4]);
    assert_eq!(windows(r#"{"model_type": "mistral", "sliding_window": 9}"#), [Some(9); 4]);
    assert_eq!(windows(r#"{"model_type": "qwen2", "sliding_window": 9}"#), [None; 4]);
    assert_eq!(windows(r#"{"model_type": "phi3"}"#), [None; 4]);
    assert_eq!(windows(r#"{"model_type": "phi3", "sliding_window": 9}"#), [Some(9); 4]);
    assert_eq!(windows(r#"{"model_type": "gemma2", "sliding_window": 9}"#), [Some(9), None, None, Some(9)]);
    let gemma3 = r#"{"model_type": "gemma3_text", "sliding_window": 9"#;
    assert_eq!(windows(&format!("{gemma3}}}")), [Some(9); 4]);
    assert_eq!(
        windows(&format!(r#"{gemma3}, "sliding_window_pattern": 2}}"#)),
        [Some(9), None, None, Some(9)]
    );
    let used = r#""model_type": "qwen2", "use_sliding_window": true"#;
    assert_eq!(windows(&format!("{{{used}}}")), [None, None, None, Some(4096)]);
    let some = format!(r#"{{{used}, "sliding_window": 9, "max_window_layers": 1}}"#);
    assert_eq!(windows(&some), [None, Some(9), Some(9), Some(9)]);
    let types: Vec<_> =
        (0..29).map(|at| if at == 1 { "sliding_attention" } else { "full_attention" }).collect();
    let some = format!(r#"{{{used}, "sliding_window": 9, "layer_types": {types:?}}}"#);
    assert_eq!(windows(&some), [None, Some(9), None, None]);
}

#[test]
fn biases_by_family() {
    let biases = |fields| serde_json::from_str::<LlamaConfig>(fields).unwrap().attention_biases();
    assert_eq!(biases("{}"), (false, false));
    assert_eq!(biases(r#"{"attention_bias": true}"#), (true, true));
    assert_eq!(biases(r#"{"model_type": "qwen2"}"#), (true, false));
}

#[test]
fn gemma_has_names_and_defaults_of_its_own() {
    let read = |fields| serde_json::from_str::<LlamaConfig>(fields).unwrap();
    let config = read(r#"{"model_type": "gemma2", "hidden_act": "silu", "hidden_activation": "relu"}"#);
    assert_eq!(config.hidden_act, Activation::Relu);
    let sizes = (config.vocab_size, config.hidden_size, config.key_value_heads(), config.head_size());
    assert_eq!(sizes, (256_000, 2304, 4, 256));
    assert!(config.tie_word_embeddings);
    let written = serde_json::to_value(&config).unwrap();
    assert_eq!((written.get("hidden_act"), &written["hidden_activation"]), (None, &Value::from("relu")));
    assert_eq!(serde_json::from_value::<LlamaConfig>(written).unwrap(), config);
    assert_eq!(read(r#"{"model_type": "gemma2"}"#).hidden_act, Activation::GeluNew);
    assert_eq!(read("{}"), LlamaConfig::default());
}

/// Early and late spellings of the two rotations of a Gemma 3.
#[test]
fn gemma3_rotates_blocks_with_a_window_differently() {
    let ropes = |fields: &str| {
        let fields = format!(r#"{{"model_type": "gemma3_text", "head_dim": 4{fields}}}"#);
        let config: LlamaConfig = serde_json::from_str(&fields).unwrap();
        (config.rope().unwrap(), config.sliding_rope().unwrap().unwrap())
    };
    let (all, windowed) = ropes("");
    assert_ne!(all, windowed);
    let old = r#", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": null"#;
    let new = r#", "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}"#;
    assert_eq!((ropes(old), ropes(new)), ((all.clone(), windowed.clone()), (all, windowed.clone())));
    let old = r#", "rope_theta": 100, "rope_scaling": {"rope_type": "linear", "factor": 8.0}"#;
    let new = r#", "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100}}"#;
    assert_eq!(ropes(old), ropes(new));
    assert_eq!(ropes(old).1, windowed, "the scaling is that of blocks without a window");
    assert_eq!(LlamaConfig::default().sliding_rope().unwrap(), None);
}

/// The cases of `tests/golden/rope.py`: what transformers derives from either spelling, and from both together.
#[test]
fn rotations_are_those_of_transformers() {
    #[derive(Deserialize)]
    struct Case {
        config: Map<String, Value>,
        ropes: Vec<Turn>,
    }
    #[derive(Deserialize)]
    struct Turn {
        frequencies: Vec<f64>,
        factor: f64,
    }
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../tests/golden/rope.json")).expect("the golden file");
    assert!(cases.len() > 40, "{}", cases.len());
    for Case { config: fields, ropes } in cases {
        let written = Value::Object(fields.clone());
        let found = match fields["model_type"].as_str() {
            // The size of a head is that of the model.
            Some("modernbert") => {
                let mut fields = fields;
                fields.insert("hidden_size".into(), fields["head_dim"].clone());
                fields.insert("num_attention_heads".into(), 1.into());
                let config: crate::ModernBertConfig = serde_json::from_value(Value::Object(fields)).unwrap();
                config.places().unwrap_or_else(|error| panic!("{written}: {error}")).ropes.to_vec()
            }
            _ => {
                let config: LlamaConfig = serde_json::from_value(Value::Object(fields)).unwrap();
                config.check().unwrap_or_else(|error| panic!("{written}: {error}"));
                [Some(config.rope().unwrap()), config.sliding_rope().unwrap()].into_iter().flatten().collect()
            }
        };
        assert_eq!(found.len(), ropes.len(), "{written}");
        for (found, expected) in found.iter().zip(&ropes) {
            let (frequencies, factor) = found.numbers();
            assert_eq!(frequencies.len(), expected.frequencies.len(), "{written}");
            let pairs =
                frequencies.iter().map(|found| f64::from(*found)).zip(expected.frequencies.iter().copied());
            for (found, expected) in pairs.chain([(factor, expected.factor)]) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{written}: {found} {expected}");
            }
        }
    }
}

#[test]
fn absent_fields_have_the_defaults_of_transformers() {
    let meaning = |config: &LlamaConfig| {
        let plain = LlamaConfig {
            num_key_value_heads: None,
            head_dim: None,
            rope_theta: None,
            rope_scaling: None,
            rope_parameters: None,
            sliding_window: None,
            use_sliding_window: None,
            rest: Map::new(),
            ..config.clone()
        };
        config.check().unwrap();
        let windows: Vec<_> =
            (0..config.num_hidden_layers).map(|block| config.window(block).unwrap()).collect();
        let sizes = (config.key_value_heads(), config.head_size(), config.attention_biases());
        let ropes = (config.rope().unwrap(), config.sliding_rope().unwrap());
        format!("{plain:?} {sizes:?} {ropes:?} {:?} {windows:?}", config.gemma().unwrap())
    };
    for model_type in LlamaLine::MODEL_TYPES {
        has_defaults_of_class(model_type, &json!({}), &[], meaning);
    }
    let windows = json!({"use_sliding_window": true});
    has_defaults_of_class("qwen2", &windows, &[], meaning);
    has_defaults_of_class("qwen3", &windows, &[], meaning);
    let longrope = json!({"rope_scaling": {"rope_type": "longrope", "short_factor": vec![1.5; 48], "long_factor": vec![2.0; 48]}});
    has_defaults_of_class("phi3", &longrope, &[], meaning);
}
