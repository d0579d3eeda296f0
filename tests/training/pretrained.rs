//! Models of Hugging Face folders compared with transformers; see `tests/golden/README.md`.

use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Int, Tensor};
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::kernels::Reads;
use firebrick::strategies::{Draws, Setup};
use firebrick::{Amp, Composition, Keep, Objective, Pass, Recompute};
use firebrick_models::decoding::Decoding;
use firebrick_models::pretrained::Pretrained;
use firebrick_models::{
    Bart, BartConfig, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, Gpt, Llama,
    ModernBertMaskedLm, ModernBertSequenceClassifier, ModernBertTokenClassifier, T5, Writes,
};

use crate::support::golden_models::{Case, Texts, cases, device, folder, gradient_norms, texts};
use crate::support::is_cpu;

/// Each case of a folder agrees with transformers, also with recomputed blocks, and approximately in mixed precision.
fn golden<M, B>(
    name: &str,
    batch_of: impl Fn(&Case) -> B,
    logits_of: impl Fn(&M, &Case, &B, &Pass) -> Vec<f32>,
) where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone,
{
    let folder = folder(name);
    let config = folder.config().unwrap();
    let loaded = folder.load::<M>(&config, &device()).unwrap();
    assert!(loaded.fresh.is_empty(), "{name}: {:?}", loaded.fresh);
    // Kernels take long to compile if a processor emulates the GPU.
    let cases = cases(name).into_iter().take(if is_cpu() { usize::MAX } else { 1 });
    for case in cases {
        let what = format!("{name}, {}, padded at the {}", case.task, case.side);
        let batch = batch_of(&case);
        let logits = logits_of(&loaded.model, &case, &batch, &Pass::evaluate(&device()));
        assert_eq!(logits.len(), case.logits.len(), "{what}");
        let furthest = logits.iter().zip(&case.logits).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(f64::from(furthest) < slack() * 1e-5, "{what}: logits differ by {furthest:e}");
        loss_and_gradients(&loaded.model, &config, &case, batch.clone(), &what);
        recomputed(&loaded.model, &config, batch.clone(), &what);
        halved(&loaded.model, case.loss, batch, &what);
    }
}

/// Factor of the tolerance on a GPU, which sums in another order and has less exact functions.
fn slack() -> f64 {
    if is_cpu() { 1.0 } else { 100.0 }
}

fn loss_and_gradients<M, B>(model: &M, config: &M::Config, case: &Case, batch: B, what: &str)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch,
{
    let items = batch.items();
    let loss = model.loss(batch, &Pass::evaluate(&device()));
    assert_eq!(loss.items, items);
    let value = loss.sum.clone().into_scalar::<f64>();
    let error = (value / case.loss - 1.0).abs();
    assert!(error < slack() * 1e-5, "{what}: loss {value}, expected {}", case.loss);

    let found = gradient_norms(model, config, &GradientsParams::from_grads(loss.sum.backward(), model));
    assert!(found.keys().eq(case.gradient_norms.keys()), "{what}: {:?}", found.keys());
    let largest = case.gradient_norms.values().fold(0f64, |most, &norm| most.max(norm));
    for ((parameter, expected), found) in case.gradient_norms.iter().zip(found.values()) {
        // A key's bias moves all scores of a row alike, so its gradient is 0 except for rounding.
        let is_zero = found.max(*expected) < slack() * 1e-6 * largest;
        let error = (found / expected - 1.0).abs();
        let text = format!("{what}: gradient of {parameter} {found}, expected {expected}");
        assert!(is_zero || error < slack() * 1e-4, "{text}, the largest {largest}");
    }
}

/// A training pass with dropout has the same loss and gradients when each block is recomputed.
fn recomputed<M, B>(model: &M, config: &M::Config, batch: B, what: &str)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone,
{
    if !is_cpu() {
        return;
    }
    let trained = |pass: Pass| {
        let pass = pass.drawing(Draws { seed: 7, ..Draws::default() });
        let loss = model.loss(batch.clone(), &pass).sum;
        let value = loss.clone().into_scalar::<f64>();
        let grads = GradientsParams::from_grads(loss.backward(), model);
        pass.check().unwrap();
        (value, gradient_norms(model, config, &grads))
    };
    let device = device();
    let mut setup = Setup::new(model, &device);
    Recompute::every_block().start(&mut setup).unwrap();
    let (plain, norms) = trained(Pass::train(&device));
    let (again, again_norms) = trained(setup.into_pass());
    assert_eq!(plain, again, "{what}: recomputed");
    assert!(norms.keys().eq(again_norms.keys()));
    let largest = norms.values().fold(0f64, |most, &norm| most.max(norm));
    // The gradient of a parameter that several blocks read is summed in another order.
    for ((parameter, norm), again) in norms.iter().zip(again_norms.values()) {
        let apart = (norm - again).abs();
        assert!(apart <= 1e-6 * norm.max(1e-2 * largest), "{what}: recomputed gradient of {parameter}");
    }
}

/// Returns the loss in mixed precision, with all parameters in bf16 or some kept in f32.
fn halved<M, B>(model: &M, expected: f64, batch: B, what: &str)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone,
{
    let device = device();
    if !device.supports_dtype(FloatDType::BF16) {
        return;
    }
    let kept = Amp::bf16().keep_f32(Keep::norms()).keep_f32(Keep::embeddings()).keep_f32(Keep::head());
    for amp in [Amp::bf16(), kept] {
        let mut setup = Setup::new(model, &device);
        let mut stage = amp.start(&mut setup).unwrap();
        let pass = setup.into_pass().evaluating(FloatDType::BF16);
        let master = stage.init_master(model.clone()).unwrap();
        let replica = stage.publish(master).unwrap();
        let found = replica.valid().loss(batch.clone(), &pass).sum;
        assert_eq!(FloatDType::from(found.dtype()), FloatDType::F32);
        let found = found.into_scalar::<f64>();
        assert!((found / expected - 1.0).abs() < 0.03, "{what}: {found} under {amp:?}, expected {expected}");
    }
}

#[test]
fn bert_labels_tokens() {
    for name in ["bert-tokens", "distilbert-tokens", "electra-tokens", "deberta-tokens", "deberta-convolved"]
    {
        golden::<BertTokenClassifier, _>(
            name,
            |case| case.labeled(0),
            |model, case, batch, pass| case.real(model.forward(batch.inputs(), pass), &case.rows),
        );
    }
}

#[test]
fn bert_labels_texts() {
    let folders = ["bert-sequence", "distilbert-sequence", "electra-sequence", "deberta-sequence"];
    for (name, pad) in folders.map(|name| (name, 0)).into_iter().chain([("xlm-roberta-sequence", 1)]) {
        golden::<BertSequenceClassifier, _>(
            name,
            |case| case.classified(pad),
            |model, _, batch, pass| model.forward(batch.inputs(), pass).into_data().iter().collect(),
        );
    }
}

#[test]
fn bert_guesses_hidden_tokens() {
    let folders = ["bert-masked-lm", "distilbert-masked-lm", "electra-masked-lm"].into_iter();
    let folders = folders.chain(["deberta-masked-lm", "deberta-masked-lm-new"]).map(|name| (name, 0));
    for (name, pad) in folders.chain([("roberta-masked-lm", 1)]) {
        golden::<BertMaskedLm, _>(
            name,
            |case| case.labeled(pad),
            |model, case, batch, pass| case.real(model.forward(batch.inputs(), pass), &case.rows),
        );
    }
}

#[test]
fn modernbert_labels_tokens_and_texts_and_guesses_hidden_tokens() {
    golden::<ModernBertTokenClassifier, _>(
        "modernbert-tokens",
        |case| case.labeled(0),
        |model, case, batch, pass| case.real(model.forward(batch.inputs(), pass), &case.rows),
    );
    for name in ["modernbert-sequence", "modernbert-sequence-mean"] {
        golden::<ModernBertSequenceClassifier, _>(
            name,
            |case| case.classified(0),
            |model, _, batch, pass| model.forward(batch.inputs(), pass).into_data().iter().collect(),
        );
    }
    golden::<ModernBertMaskedLm, _>(
        "modernbert-masked-lm",
        |case| case.labeled(0),
        |model, case, batch, pass| case.real(model.forward(batch.inputs(), pass), &case.rows),
    );
}

/// Returns what a causal model reads of a batch: ids, positions, and what each position reads.
fn placed(batch: &TokenBatch) -> (Tensor<2, Int>, Tensor<2, Int>, Reads) {
    let ([rows, length], device, real) = (batch.shape(), device(), batch.host_mask());
    let columns = || Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
    let reads = Reads::new([rows, length, length], |row, query| {
        let real = &real[row * length..][..query + 1];
        let alike = real.iter().rev().take_while(|is_real| **is_real == real[query]).count();
        query + 1 - alike..query + 1
    });
    (batch.ids(&device), batch.position_ids(&device).unwrap_or_else(columns), reads)
}

#[test]
fn gpt2_continues_texts() {
    for name in ["gpt2", "gpt2-untied"] {
        golden::<Gpt, _>(name, Case::causal, |model, case, batch, pass| {
            let (ids, places, reads) = placed(batch);
            case.real(model.forward_placed(ids, places, reads, pass), &case.rows)
        });
    }
}

#[test]
fn llama_continues_texts() {
    let relatives = ["mistral", "qwen2-windows", "qwen3", "qwen3-windows", "phi3", "phi3-longrope"];
    let gemmas = ["gemma2", "gemma2-uncapped", "gemma3", "gemma3-scaled"];
    for name in ["llama", "llama3", "qwen2"].into_iter().chain(relatives).chain(gemmas) {
        golden::<Llama, _>(name, Case::causal, |model, case, batch, pass| {
            let (ids, places, reads) = placed(batch);
            case.real(model.forward_placed(ids, places, reads, pass), &case.rows)
        });
    }
}

#[test]
fn t5_turns_one_text_into_another() {
    for name in ["t5", "t5-untied", "mt5", "mt5-untied"] {
        golden::<T5, _>(name, Case::seq2seq, |model, case, batch, pass| {
            case.real(model.forward(batch, pass), &case.targets)
        });
    }
}

#[test]
fn bart_turns_one_text_into_another() {
    for name in ["bart", "bart-scaled"] {
        golden::<Bart, _>(name, Case::seq2seq, |model, case, batch, pass| {
            case.real(model.forward(batch, pass), &case.targets)
        });
    }
}

#[test]
fn bart_learns_smoothed_labels() {
    let folder = folder("bart");
    // Labels are smoothed in passes that train.
    let config = BartConfig { dropout: 0.0, ..folder.config().unwrap() };
    let model = folder.load::<Bart>(&config, &device()).unwrap().model;
    for case in cases("bart") {
        let pass = Pass::train(&device()).smoothing_labels(case.smoothing);
        let loss = model.loss(case.seq2seq(), &pass).sum.into_scalar::<f64>();
        assert!((loss / case.smoothed_loss - 1.0).abs() < slack() * 1e-5, "{loss}");
        assert!((case.loss / case.smoothed_loss - 1.0).abs() > 1e-3);
    }
}

#[test]
fn bart_writes_what_it_writes_in_transformers() {
    let folder = folder("bart");
    let model = folder.load::<Bart>(&folder.config().unwrap(), &device()).unwrap().model;
    let cases = cases("bart");
    let mut ended = 0;
    for Texts { settings, tokens, scores } in texts("bart") {
        let decoding = Decoding {
            max_new_tokens: 9,
            end_tokens: vec![2],
            beams: settings["num_beams"].unwrap() as usize,
            forced_first: settings["forced_bos_token_id"],
            forced_last: settings["forced_eos_token_id"].into_iter().collect(),
            ..Decoding::default()
        };
        for case in &cases {
            let found = model.written(case.seq2seq().source(), case.start, &decoding).unwrap();
            assert_eq!(found.len(), tokens.len());
            for (row, (found, expected)) in found.iter().zip(&tokens).enumerate() {
                assert_eq!(&found[0].tokens, expected, "{decoding:?}, padded at the {}", case.side);
                let score = scores.as_ref().map_or(found[0].score, |scores| scores[row]);
                assert!((found[0].score - score).abs() < slack() * 1e-5, "{} {score}", found[0].score);
                ended += usize::from(found[0].tokens.last() == Some(&2));
            }
        }
    }
    assert_eq!(ended, 2 * 16);
}

/// Samples that share a row give the same results as alone.
fn packs<M: Pretrained + Objective<TokenBatch>>(name: &str) {
    let (folder, case) = (folder(name), &cases(name)[0]);
    let model = folder.load::<M>(&folder.config().unwrap(), &device()).unwrap().model;
    let loss = model.loss(case.packed(), &Pass::evaluate(&device())).sum.into_scalar::<f64>();
    assert!((loss / case.loss - 1.0).abs() < slack() * 1e-5, "{name}: {loss}, expected {}", case.loss);
}

#[test]
fn packed_texts_are_continued_as_alone() {
    packs::<Gpt>("gpt2");
    packs::<Llama>("llama");
    packs::<Llama>("gemma2");
}

#[test]
fn training_drops() {
    let (folder, case) = (folder("bert-tokens"), &cases("bert-tokens")[0]);
    let model = folder.load::<BertTokenClassifier>(&folder.config().unwrap(), &device()).unwrap().model;
    let loss = |seed| {
        let pass = Pass::train(&device()).drawing(Draws { seed, ..Draws::default() });
        model.loss(case.labeled(0), &pass).sum.into_scalar::<f64>()
    };
    assert!((loss(1) - case.loss).abs() > 1e-3 && loss(1) != loss(2) && loss(1) == loss(1));
}
