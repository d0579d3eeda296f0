//! Generation with cached keys and values gives the same texts as rereading everything.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use firebrick_datasets::collators::{Inputs, Seq2Seq, Seq2SeqSample, Tokens};
use firebrick_datasets::{Collator, Drawn, Encoder, Padding, Side, Tokenizer};
use firebrick_kernels::Reads;
use firebrick_strategies::{Composition, Pass, Setup, Zero};
use firebrick_world::Communicator;

use super::*;
use crate::causal::PlacedTokens;
use crate::decoding::{Decoding, DecodingError, Rereading, Row};
use crate::pretrained::Pretrained;
use crate::testing;
use crate::{Bart, BartConfig, Encoded, Gpt, GptConfig, Llama, LlamaConfig, T5, T5Config, WrittenScores};
use firebrick::Objective;

const VOCABULARY: usize = 13;

fn gpt(device: &Device) -> Gpt {
    device.seed(7);
    let config = GptConfig { layers: 2, heads: 2, width: 8, dropout: 0.0, bias: true, tied: true };
    spread(config.init(VOCABULARY, 6, device))
}

fn llama(model_type: &str, device: &Device) -> Llama {
    scaled_llama(model_type, serde_json::Value::Null, device)
}

fn scaled_llama(model_type: &str, rope_scaling: serde_json::Value, device: &Device) -> Llama {
    device.seed(7);
    let config = LlamaConfig {
        rope_scaling: rope_scaling.as_object().cloned(),
        model_type: model_type.into(),
        head_dim: Some(4),
        vocab_size: VOCABULARY,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        sliding_window: Some(Some(3)),
        ..Default::default()
    };
    spread(Llama::init(&config, device))
}

fn t5(device: &Device) -> T5 {
    device.seed(7);
    let config = T5Config {
        vocab_size: VOCABULARY,
        d_model: 8,
        d_kv: 4,
        d_ff: 12,
        num_layers: 2,
        num_heads: 2,
        ..Default::default()
    };
    spread(T5::init(&config, device))
}

/// `positions` are those of a source and of a target.
fn bart(positions: usize, device: &Device) -> Bart {
    device.seed(7);
    let config = BartConfig {
        vocab_size: VOCABULARY,
        max_position_embeddings: positions,
        d_model: 8,
        encoder_layers: 2,
        encoder_ffn_dim: 12,
        encoder_attention_heads: 2,
        decoder_layers: 2,
        decoder_ffn_dim: 12,
        decoder_attention_heads: 4,
        ..Default::default()
    };
    spread(Bart::init(&config, device))
}

/// Spreads the weights, so that the logits of tokens differ clearly.
fn spread<M: Module>(model: M) -> M {
    struct Spread;
    impl firebrick_strategies::ParamMap for Spread {
        fn map<const D: usize>(&mut self, _: burn::module::ParamId, value: Tensor<D>) -> Tensor<D> {
            if D == 2 { value * 20.0 } else { value }
        }
    }
    firebrick_strategies::map_params(model, &mut Spread)
}

/// Reads one row at a time, all of it again for each token, as far back as the model has positions.
fn reread<'a>(
    forward: impl Fn(Tensor<2, Int>) -> Tensor<3> + 'a,
    device: &'a Device,
    most: usize,
) -> impl FnMut(&[Row]) -> Result<Vec<f32>, TrainError> + 'a {
    move |rows| {
        let mut logits = Vec::new();
        for row in rows {
            let seen = &row.tokens[row.tokens.len().saturating_sub(most)..];
            let ids: Vec<i64> = seen.iter().map(|&id| i64::from(id)).collect();
            let ids = Tensor::from_data(TensorData::new(ids, [1, seen.len()]), device);
            let last = last_column(forward(ids)).cast(FloatDType::F32);
            logits.extend(last.into_data().iter::<f32>());
        }
        Ok(logits)
    }
}

/// Different lengths, one of them longer than a context of 6.
fn prompts() -> Vec<Prompt> {
    let rows: [&[u32]; 4] = [&[1, 2, 3], &[4], &[5, 6, 7, 8, 9, 10, 11, 12], &[2, 2]];
    (0..).zip(rows).map(|(row, tokens)| Prompt::new(row, tokens)).collect()
}

fn decodings() -> [Decoding; 4] {
    let decoding = Decoding { max_new_tokens: 9, end_tokens: vec![3], ..Decoding::default() };
    [
        decoding.clone(),
        Decoding { temperature: 1.0, returned: 2, seed: 5, ..decoding.clone() },
        Decoding { beams: 3, returned: 2, ..decoding.clone() },
        Decoding { end_tokens: vec![], ..decoding },
    ]
}

fn assert_alike(kept: &[Vec<Text>], again: &[Vec<Text>]) {
    assert_eq!(kept.len(), again.len());
    for (kept, again) in kept.iter().flatten().zip(again.iter().flatten()) {
        assert_eq!(kept.tokens, again.tokens);
        assert!((kept.log_probability - again.log_probability).abs() < 1e-3, "{kept:?} {again:?}");
    }
}

#[test]
fn a_gpt_generates_the_same_with_a_cache() {
    let device = testing::device();
    let model = gpt(&device);
    for decoding in decodings() {
        let kept = model.continued(&prompts(), &decoding).unwrap();
        let forward = |ids| model.forward(ids, &Pass::evaluate(&device));
        let mut all = Rereading::new(&prompts(), VOCABULARY, reread(forward, &device, 6));
        assert_alike(&kept, &decoding.write(&mut all, &prompts()).unwrap());
    }
}

#[test]
fn a_llama_with_shared_keys_generates_the_same_with_a_cache() {
    let device = testing::device();
    for model_type in ["llama", "qwen3", "phi3", "gemma2", "gemma3_text"] {
        let model = llama(model_type, &device);
        for decoding in decodings() {
            let kept = model.continued(&prompts(), &decoding).unwrap();
            let forward = |ids| model.forward(ids, &Pass::evaluate(&device));
            let mut all = Rereading::new(&prompts(), VOCABULARY, reread(forward, &device, usize::MAX));
            assert_alike(&kept, &decoding.write(&mut all, &prompts()).unwrap());
        }
    }
}

/// The prompts and texts have other angles beyond the first 6 tokens.
#[test]
fn a_llama_rereads_a_text_that_outgrows_its_first_context() {
    let device = testing::device();
    let scaling = serde_json::json!({
        "rope_type": "longrope", "original_max_position_embeddings": 6, "attention_factor": 1.0,
        "short_factor": [1.0, 1.0], "long_factor": [0.4, 0.1],
    });
    let (model, plain) = (scaled_llama("llama", scaling, &device), llama("llama", &device));
    let mut differ = false;
    for decoding in decodings() {
        let kept = model.continued(&prompts(), &decoding).unwrap();
        let forward = |ids| model.forward(ids, &Pass::evaluate(&device));
        let mut all = Rereading::new(&prompts(), VOCABULARY, reread(forward, &device, usize::MAX));
        assert_alike(&kept, &decoding.write(&mut all, &prompts()).unwrap());
        differ |= kept != plain.continued(&prompts(), &decoding).unwrap();
    }
    assert!(differ);
}

/// Sources and the texts from them, all together and one source at a time without a cache. `decode` returns the logits of
/// tokens that a source is given with, of which the model reads as many as `most`.
fn generates_the_same_in_any_batch<M: Writes>(
    model: &M,
    encode: impl Fn(&Inputs, &Pass) -> Encoded,
    decode: impl Fn(Tensor<2, Int>, Encoded, &Pass) -> Tensor<3>,
    most: usize,
) {
    let device = testing::device();
    let sources = [vec![4, 5, 6, 1], vec![7, 1], vec![8, 9, 10, 11, 12, 1]];
    let source = |ids: &Vec<u32>| Tokens { ids: ids.clone(), type_ids: vec![0; ids.len()] };
    let forced = Decoding { forced_first: Some(5), forced_last: vec![3], ..decodings()[2].clone() };
    for decoding in decodings().into_iter().chain([forced]) {
        for side in [Side::Left, Side::Right] {
            let rows: Vec<_> = sources.iter().map(source).collect();
            let rows: Vec<_> = rows.iter().collect();
            let all = Inputs::new(&rows, &Padding::default().side(side), 0).unwrap();
            let prompts: Vec<_> = (0..3).map(|row| Prompt::new(row, [0])).collect();
            let together = model.written(&all, 0, &decoding).unwrap();
            let read = |rows: &[Row]| {
                let mut logits = Vec::new();
                for row in rows {
                    let alone = Inputs::new(&[&source(&sources[row.prompt])], &Padding::default(), 0)?;
                    let pass = Pass::evaluate(&device);
                    let seen = &row.tokens[row.tokens.len().saturating_sub(most)..];
                    let ids: Vec<i64> = seen.iter().map(|&id| i64::from(id)).collect();
                    let ids = Tensor::from_data(TensorData::new(ids, [1, seen.len()]), &device);
                    let last = last_column(decode(ids, encode(&alone, &pass), &pass));
                    logits.extend(last.into_data().iter::<f32>());
                }
                Ok::<_, TrainError>(logits)
            };
            let mut alone = Rereading::new(&prompts, VOCABULARY, read);
            assert_alike(&together, &decoding.write(&mut alone, &prompts).unwrap());
        }
    }
}

#[test]
fn a_t5_generates_the_same_in_any_batch() {
    let model = t5(&testing::device());
    generates_the_same_in_any_batch(
        &model,
        |source, pass| model.encode(source, pass),
        |ids, source, pass| {
            let reads = Reads::causal(ids.dims()[1]);
            model.decode(ids, reads, source, pass)
        },
        usize::MAX,
    );
}

/// Also if texts are longer than its positions, so that it reads their ends again.
#[test]
fn a_bart_generates_the_same_in_any_batch() {
    for positions in [40, 6] {
        let model = bart(positions, &testing::device());
        generates_the_same_in_any_batch(
            &model,
            |source, pass| model.encode(source, pass),
            |ids, source, pass| {
                let PlacedTokens { ids, places, reads, .. } = PlacedTokens::in_columns(ids);
                model.decode(ids, places, reads, source, pass)
            },
            positions,
        );
    }
}

#[test]
fn an_empty_prompt_starts_from_token_0() {
    let model = gpt(&testing::device());
    let texts = |tokens: &[u32]| model.continued(&[Prompt::new(0, tokens)], &Decoding::default()).unwrap();
    assert_eq!(texts(&[]), texts(&[0]));
}

#[test]
fn ranks_that_share_a_model_generate_the_same() {
    let device = testing::device().autodiff();
    let model = gpt(&device);
    // Some ranks write more than others, one has no prompt; and the texts exceed the context.
    let wanted: [(&[&[u32]], usize); 3] = [(&[&[1, 2, 3], &[5]], 9), (&[&[4]], 2), (&[], 1)];
    let asked = |rank: usize| -> (Vec<Prompt>, Decoding) {
        let (rows, most) = wanted[rank];
        let prompts = (0..).zip(rows).map(|(row, tokens)| Prompt::new(row, *tokens)).collect();
        let seed = rank as u64;
        (prompts, Decoding { max_new_tokens: most, temperature: 1.0, seed, ..Decoding::default() })
    };
    let texts = on_sharing_ranks(3, &model, &device, |reads, pass, world| {
        let (prompts, decoding) = asked(world.rank());
        reads.continued_among(world, pass, &prompts, &decoding).unwrap()
    });
    for (rank, texts) in texts.iter().enumerate() {
        let (prompts, decoding) = asked(rank);
        assert_alike(texts, &model.continued(&prompts, &decoding).unwrap());
        assert!(texts.iter().flatten().all(|text| text.tokens.len() == decoding.max_new_tokens));
    }
}

#[test]
fn ranks_that_share_a_model_write_the_same_from_sources() {
    let device = testing::device().autodiff();
    // Fewer positions than a text has tokens.
    let model = bart(4, &device);
    let source = |ids: &[u32]| {
        let source = Tokens { ids: ids.to_vec(), type_ids: vec![0; ids.len()] };
        Inputs::new(&[&source], &Padding::default(), 0).unwrap()
    };
    let asked = |rank: usize| {
        let most = [9, 2, 4][rank];
        let decoding = Decoding { max_new_tokens: most, beams: 1 + rank, ..Decoding::default() };
        (source(&[4 + rank as u32, 5, 6][..3 - rank]), [Prompt::new(rank as u64, [0])], decoding)
    };
    let texts = on_sharing_ranks(3, &model, &device, |reads, pass, world| {
        let (sources, prompts, decoding) = asked(world.rank());
        reads.written_among(world, pass, &sources, &prompts, &decoding).unwrap()
    });
    for (rank, texts) in texts.iter().enumerate() {
        let (sources, prompts, decoding) = asked(rank);
        assert_alike(texts, &model.written_from(&sources, &prompts, &decoding).unwrap());
        assert!(texts.iter().flatten().all(|text| text.tokens.len() == decoding.max_new_tokens));
    }
}

/// The results of each rank with a shard of the model, prepared for evaluation.
fn on_sharing_ranks<M: Module + Sync + 'static, T: Send>(
    count: usize,
    model: &M,
    device: &Device,
    find: impl Fn(M, &Pass, &Communicator) -> T + Sync,
) -> Vec<T> {
    let ranks = std::sync::Mutex::new(vec![model.clone(); count]);
    testing::on_ranks(count, |world| {
        let model = ranks.lock().unwrap().pop().unwrap().fork(device);
        let mut setup = Setup::new(&model, device).among(world.clone());
        let mut stage = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
        let pass = setup.into_pass().evaluating(FloatDType::F32);
        let master = stage.init_master(model).unwrap();
        let replica = stage.publish(master.clone()).unwrap();
        let reads = stage.evaluator(&master, replica).unwrap().valid();
        find(reads, &pass, &world)
    })
}

#[test]
fn texts_generated_in_evaluation_are_scored() {
    let device = testing::device().autodiff();
    let text = "abcdefghij";
    let tokenizer = Arc::new(Tokenizer::characters(text).unwrap());
    let model = t5(&device);
    let encoder = Encoder::new(tokenizer.clone());
    let task = Seq2Seq::new(encoder.clone(), encoder).pad_id(11).start_id(10);
    let sample = |source: &str, target: &str, prompt| {
        let ids = |text: &str| text.bytes().map(|byte| u32::from(byte - b'a')).collect::<Vec<u32>>();
        let text = target[prompt..].into();
        let (source, target) = (ids(source), ids(target));
        let source = Tokens { type_ids: vec![0; source.len()], ids: source };
        Seq2SeqSample { source, target, prompt, text }
    };
    // The last target begins with two given tokens.
    let all =
        [sample("abcd", "hgfe", 0), sample("cc", "a", 0), sample("fghij", "bcd", 0), sample("ij", "cdab", 2)];
    let batch = |samples: &[Seq2SeqSample]| {
        let drawn = |sample: &Seq2SeqSample| Drawn { epoch: 0, index: 0, sample: Arc::new(sample.clone()) };
        task.collate(&samples.iter().map(drawn).collect::<Vec<_>>()).unwrap()
    };

    let sources = batch(&all);
    let prompts: Vec<Prompt> = [vec![10], vec![10], vec![10], vec![10, 2, 3]]
        .into_iter()
        .zip(0..)
        .map(|(ids, row)| Prompt::new(row, ids))
        .collect();
    let written = |end: Option<u32>| -> (Decoding, Vec<Vec<u32>>) {
        let decoding =
            Decoding { max_new_tokens: 7, end_tokens: end.into_iter().collect(), ..Decoding::default() };
        let texts = model.written_from(sources.source(), &prompts, &decoding).unwrap();
        (decoding, texts.iter().map(|texts| texts[0].without_end().to_vec()).collect())
    };
    // Rows end at different places, so ranks wait for one another.
    let (_, endless) = written(None);
    let place = |row: &Vec<u32>, end| row.iter().position(|id| *id == end);
    let parts = |end: &u32| endless.iter().any(|row| place(row, *end) != place(&endless[0], *end));
    let end = (0..VOCABULARY as u32).find(parts).expect("rows are not alike");
    let (decoding, best) = written(Some(end));
    let scores = WrittenScores::new(tokenizer, decoding);
    let model = model.clone().scoring(scores.clone());

    let pass = Pass::evaluate(&device.clone().inner());
    let alone = model.valid().evaluate(batch(&all), &pass).counts;
    let wanted = ["hgfe", "a", "bcd", "ab"];
    assert_eq!(alone[2..], scores.counts(&best, &wanted).unwrap());
    let named = model.scores(&alone);
    assert!(named.len() == 8 && named.iter().all(|score| score.value.is_finite()), "{named:?}");

    // Each rank has some of the rows, and one rank has twice as many.
    let shares = [&all[..1], &all[1..2], &all[2..]];
    let of_ranks = on_sharing_ranks(3, &model, &device, |reads, pass, world| {
        let (entered, pass) = pass.enter(&reads).unwrap();
        entered.evaluate(batch(shares[world.rank()]), &pass).counts
    });
    let sum = |at: usize| of_ranks.iter().map(|counts| counts[at]).sum::<f64>();
    assert!((sum(0) - alone[0]).abs() < 1e-4 * alone[0], "the loss");
    assert_eq!((1..alone.len()).map(sum).collect::<Vec<_>>(), alone[1..]);
}

/// Returns the error of the decoding.
fn of_decoding(error: &TrainError) -> &DecodingError {
    let TrainError::Model(error) = error else { panic!("{error}") };
    error.downcast_ref().unwrap()
}

#[test]
fn too_many_texts_for_memory_fail_early() {
    let device = Device::flex();
    let refused = |beams, returned, temperature| {
        let decoding = Decoding { beams, returned, temperature, max_new_tokens: 3, ..Decoding::default() };
        gpt(&device).continued(&[Prompt::new(0, [1, 2])], &decoding)
    };
    let most = 1_000_000_000_000;
    let error = refused(1, most, 1.0).unwrap_err();
    let &DecodingError::TooLarge { rows, tokens: 5, needed, .. } = of_decoding(&error) else {
        panic!("{error}")
    };
    // The keys and values of two blocks, 8 numbers each, of five tokens; the tokens, twice; and the logits.
    let each = 4.0 * (5.0 * (2.0 * 2.0 * 8.0 + 2.0) + VOCABULARY as f64);
    assert_eq!((rows, needed), (most, most as f64 * each));
    assert!(refused(5, 1, 0.0).is_ok());
    let error = refused(most, 1, 0.0).unwrap_err();
    let vocabulary = VOCABULARY;
    assert!(
        matches!(*of_decoding(&error), DecodingError::Beams { beams, vocabulary: found } if beams == most && found == vocabulary),
        "{error}"
    );

    // A model that reads only the end of a text still keeps all of its tokens.
    let endless = Decoding { max_new_tokens: most, ..Decoding::default() };
    let error = gpt(&device).continued(&[Prompt::new(0, [1, 2])], &endless).unwrap_err();
    let &DecodingError::TooLarge { rows: 1, tokens, needed, .. } = of_decoding(&error) else {
        panic!("{error}")
    };
    assert!(tokens == most + 2 && needed > 8.0 * most as f64, "{tokens} {needed}");
}
