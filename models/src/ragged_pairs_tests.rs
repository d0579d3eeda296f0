//! A batch of sources and targets without its padding gives what it gives with it.

use super::*;

/// Sources and targets of these lengths. The first tokens of longer targets have no label.
pub(super) fn pairs(lengths: &[[usize; 2]], sides: [Side; 2]) -> Seq2SeqBatch {
    let encoder = Encoder::new(Arc::new(Tokenizer::characters("abcdefghijk").unwrap()));
    let [sources, targets] = sides.map(|side| Padding::default().side(side).multiple_of(8).unwrap());
    let task = Seq2Seq::new(encoder.clone(), encoder).pad_id(0).padding(sources, targets);
    let ids = |length: usize, row: usize| {
        (0..length).map(|at| (1 + (row * 7 + at * 3) % 28) as u32).collect::<Vec<_>>()
    };
    let row = |(row, &[source, target]): (usize, &[usize; 2])| {
        let source = RowTokens { ids: ids(source, row), type_ids: vec![0; source] };
        let (target, prompt) = (ids(target, row + 3), target / 5);
        let sample = Arc::new(Seq2SeqSample { source, target, prompt, text: "".into() });
        Drawn { epoch: 0, index: row as u64, sample }
    };
    task.collate(&lengths.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap()
}

pub(super) fn t5_config(dropout_rate: f64, gate: &str, tie_word_embeddings: bool) -> T5Config {
    T5Config {
        vocab_size: 30,
        d_model: 16,
        d_kv: 6,
        d_ff: 24,
        num_layers: 2,
        num_heads: 2,
        dropout_rate,
        feed_forward_proj: gate.into(),
        tie_word_embeddings,
        ..Default::default()
    }
}

pub(super) fn bart_config(dropout: f64) -> BartConfig {
    BartConfig {
        vocab_size: 30,
        max_position_embeddings: 72,
        d_model: 16,
        encoder_layers: 2,
        encoder_ffn_dim: 24,
        encoder_attention_heads: 2,
        decoder_layers: 2,
        decoder_ffn_dim: 24,
        decoder_attention_heads: 4,
        dropout,
        attention_dropout: dropout,
        activation_dropout: dropout,
        ..Default::default()
    }
}

#[test]
fn an_encoder_and_its_decoder_compute_the_same_without_padding() {
    fn all_agree<M: Module + Objective<Seq2SeqBatch> + 'static>(model: M) {
        let rows = [[3, 9], [66, 1], [1, 70], [9, 4], [5, 30]];
        let right = |lengths: &[[usize; 2]]| pairs(lengths, [Side::Right; 2]);
        agrees(&model, || right(&rows), FloatDType::F32);
        agrees(&model, || right(&rows), FloatDType::BF16);
        // Rows without a source or a target, targets of one token, and padding of one side only.
        agrees(&model, || right(&[[0, 3], [4, 0], [2, 8]]), FloatDType::F32);
        agrees(&model, || right(&[[8, 1], [2, 1]]), FloatDType::F32);
        agrees(&model, || right(&[[8, 3], [8, 8]]), FloatDType::F32);
        agrees(&model, || right(&[[3, 8], [8, 8]]), FloatDType::F32);
        agrees(&model, || right(&[[8, 8]]), FloatDType::F32);
        for sides in [[Side::Left; 2], [Side::Left, Side::Right], [Side::Right, Side::Left]] {
            agrees(&model, || pairs(&rows, sides), FloatDType::F32);
            agrees(&model, || pairs(&[[0, 3], [4, 0], [2, 8]], sides), FloatDType::F32);
        }
    }
    let device = testing::device().autodiff();
    for (gate, tied) in [("relu", true), ("gated-gelu", false)] {
        all_agree(T5::init(&t5_config(0.2, gate, tied), &device));
    }
    all_agree(Bart::init(&bart_config(0.2), &device));
}
