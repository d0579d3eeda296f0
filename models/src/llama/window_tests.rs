//! Compares models with a window to models that see only those tokens.

use super::*;
use crate::Continues;
use crate::decoding::{Decoding, Prompt};
use crate::testing;

const WINDOW: usize = 3;

/// A Mistral with this window.
fn mistral(layers: usize, window: Option<usize>, device: &Device) -> Llama {
    let config = LlamaConfig {
        model_type: "mistral".into(),
        vocab_size: 11,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: layers,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        initializer_range: 0.5,
        sliding_window: Some(window),
        ..LlamaConfig::default()
    };
    device.seed(3);
    crate::drawn_now(Llama::init(&config, device))
}

/// The same weights with another window.
fn with(model: &Llama, window: Option<usize>) -> Llama {
    let mut model = model.clone();
    model.windows.iter_mut().for_each(|own| *own = window);
    model
}

/// The logits of the last column.
fn last(model: &Llama, ids: &[i64], device: &Device) -> Vec<f32> {
    let ids = Tensor::<1, Int>::from_data(ids, device).unsqueeze::<2>();
    last_column(model.forward(ids, &Pass::evaluate(device))).into_data().iter().collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_token_attends_only_within_the_window() {
    let device = testing::device();
    let ids = [4, 1, 9, 2, 7, 5, 3];
    // Rotary positions are relative, so a block that reads three tokens gives the same logits for these tokens alone.
    let one = mistral(1, Some(WINDOW), &device);
    assert!(apart(&last(&one, &ids, &device), &last(&one, &ids[4..], &device)) < 1e-5);
    let unbound = with(&one, None);
    assert!(apart(&last(&one, &ids, &device), &last(&unbound, &ids, &device)) > 1e-3);
    assert!(apart(&last(&unbound, &ids, &device), &last(&unbound, &ids[4..], &device)) > 1e-3);
    // Two blocks reach twice as far, minus one.
    let two = mistral(2, Some(WINDOW), &device);
    assert!(apart(&last(&two, &ids, &device), &last(&two, &ids[2..], &device)) < 1e-5);
    assert!(apart(&last(&two, &ids, &device), &last(&two, &ids[3..], &device)) > 1e-3);
    // Inputs no longer than the window are unaffected by it.
    assert_eq!(last(&two, &ids[..3], &device), last(&with(&two, None), &ids[..3], &device));
}

#[test]
fn cached_decoding_beyond_the_window_equals_a_full_pass() {
    let device = testing::device();
    let model = mistral(2, Some(WINDOW), &device);
    let decoding = Decoding { max_new_tokens: 9, ..Decoding::default() };
    // Different lengths, so that rows are padded.
    let prompts = [vec![4u32, 1, 9, 2, 7], vec![5]];
    let asked: Vec<_> = prompts.iter().zip(0..).map(|(ids, row)| Prompt::new(row, ids.clone())).collect();
    let texts = model.continued(&asked, &decoding).unwrap();
    for (prompt, texts) in prompts.iter().zip(texts) {
        let mut ids: Vec<i64> = prompt.iter().map(|id| i64::from(*id)).collect();
        for token in &texts[0].tokens {
            let logits = last(&model, &ids, &device);
            let best = (0..)
                .zip(&logits)
                .fold((0, f32::MIN), |best, (id, logit)| if *logit > best.1 { (id, *logit) } else { best });
            assert_eq!(best.0, *token, "after {ids:?}");
            ids.push(i64::from(*token));
        }
    }
}
