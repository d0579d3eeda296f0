//! What is read, refused and written of `config.json`.

use super::*;

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
            r#"{"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}"#,
            "rope_parameters",
        ),
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
        r#"{"model_type": "qwen3", "num_attention_heads": 3}"#,
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
