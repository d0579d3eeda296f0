//! A batch without a token has no loss, and needs no forward pass.

use firebrick::{Evaluation, Loss, Objective};

use super::*;
use crate::WrittenScores;
use crate::decoding::Decoding;

/// The loss and the counts of a batch, with padding and without it, are those of nothing.
fn is_nothing<M: Module + Objective<B>, B: Batch + Clone>(model: &M, batch: &B) {
    for keeps in [true, false] {
        let pass = pass(keeps, FloatDType::F32);
        let Loss { sum, items } = model.loss(batch.clone(), &pass);
        assert_eq!((sum.clone().into_scalar::<f32>(), items), (0.0, 0));
        assert!(gradients(model, sum.backward()).iter().all(|(_, gradient)| gradient.is_empty()));
        let evaluated = model.evaluate(batch.clone(), &pass.evaluating(FloatDType::F32));
        let Evaluation { loss, counts } = evaluated;
        assert_eq!((loss.sum.into_scalar::<f32>(), loss.items), (0.0, 0));
        assert!(counts.iter().all(|count| *count == 0.0), "{counts:?}");
    }
}

/// The loss and the counts of a batch in which only padding is read are numbers.
fn is_read<M: Module + Objective<B>, B: Batch + Clone>(model: &M, batch: &B) {
    for keeps in [true, false] {
        let pass = pass(keeps, FloatDType::F32);
        let Loss { sum, items } = model.loss(batch.clone(), &pass);
        assert_eq!(items, batch.items());
        assert!(sum.clone().into_scalar::<f32>().is_finite());
        let _ = sum.backward();
        let Evaluation { counts, .. } = model.evaluate(batch.clone(), &pass.evaluating(FloatDType::F32));
        assert!(counts.iter().all(|count| count.is_finite()), "{counts:?}");
    }
}

#[test]
fn a_batch_without_a_token_has_no_loss_in_any_family() {
    let device = testing::device().autodiff();
    let bert = config("bert");
    let tagger = BertTokenClassifier::init(&bert, &device);
    let masked = BertMaskedLm::init(&bert, &device);
    let classifier = BertSequenceClassifier::init(&bert, &device);
    let shape = GptConfig { layers: 1, heads: 2, width: 16, dropout: 0.2, bias: true, tied: true };
    let gpt = shape.init(30, 90, &device);
    let llama = Llama::init(&llama_config("llama"), &device);
    let t5 = T5::init(&t5_config(0.2, "relu", true), &device);
    let bart = Bart::init(&bart_config(0.2), &device);
    let tokenizer = Arc::new(Tokenizer::characters("abcdefghijk").unwrap());
    let decoding = Decoding { max_new_tokens: 4, ..Decoding::default() };
    let scored = t5.clone().scoring(WrittenScores::new(tokenizer, decoding));
    for side in [Side::Right, Side::Left] {
        // No sample, and samples without a token.
        for lengths in [&[][..], &[0], &[0, 0]] {
            let own = |lengths: &[usize]| lengths.iter().map(|length| [*length; 2]).collect::<Vec<_>>();
            is_nothing(&t5, &pairs(&own(lengths), [side; 2]));
            is_nothing(&bart, &pairs(&own(lengths), [side; 2]));
            is_nothing(&scored, &pairs(&own(lengths), [side; 2]));
            for is_packed in [false, true] {
                is_nothing(&gpt, &texts(&[lengths], side, is_packed));
                is_nothing(&llama, &texts(&[lengths], side, is_packed));
            }
            let (labeled, classified) = (batch(lengths, side), classified(lengths, side));
            if lengths.is_empty() {
                is_nothing(&tagger, &labeled);
                is_nothing(&masked, &labeled);
                is_nothing(&classifier, &classified);
            } else {
                // Encoders read the padding of a row without tokens, as they do among other rows.
                is_read(&tagger, &labeled);
                is_read(&masked, &labeled);
                is_read(&classifier, &classified);
            }
        }
        is_nothing(&gpt, &texts(&[], side, true));
        is_nothing(&llama, &texts(&[], side, true));
        is_nothing(&scored, &pairs(&[[3, 0], [0, 0]], [side; 2]));
        is_read(&t5, &pairs(&[[0, 3], [0, 2]], [side; 2]));
        is_read(&bart, &pairs(&[[0, 3], [0, 2]], [side; 2]));
    }
}

/// What an encoder says about a text without a token does not depend on the other texts.
#[test]
fn a_row_without_a_token_is_read_alone_as_among_others() {
    let device = testing::device().autodiff();
    let model = BertSequenceClassifier::init(&config("bert"), &device);
    let logits = |lengths: &[usize]| -> Vec<f32> {
        let pass = pass(true, FloatDType::F32).evaluating(FloatDType::F32);
        model.forward(classified(lengths, Side::Right).inputs(), &pass).into_data().iter().collect()
    };
    let (alone, among) = (logits(&[0]), logits(&[0, 5]));
    assert!(
        alone.iter().zip(&among).all(|(alone, among)| (alone - among).abs() < 1e-5),
        "{alone:?} {among:?}"
    );
}
