//! What has a row for each token of the vocabulary: the lookup in an embedding, and the output layer with the scores of its
//! losses.

use burn::nn::Embedding;
use burn::tensor::{FloatDType, Int, Tensor};
use firebrick::{Evaluation, Loss, Score};
use firebrick_kernels::{Head, HeadWeight, cast, embedding_sum};
use firebrick_strategies::{Pass, TensorPlan};

use crate::Linear;

/// Returns the output layer: the head or, in a model without one, the embeddings of the tokens.
pub(super) fn output_layer(tokens: &Embedding, head: Option<&Linear>) -> Head {
    match head {
        Some(head) => {
            let weight = head.weight.val();
            let dtype = FloatDType::from(weight.dtype());
            let bias = head.bias.as_ref().map(|bias| cast(bias.val(), dtype));
            Head { weight: HeadWeight::Linear(weight), bias, cap: None }
        }
        None => Head { weight: HeadWeight::Embedding(tokens.weight.val()), bias: None, cap: None },
    }
}

/// Adds to a plan the vocabulary of a model: the table of its `tokens`, and the output layer `head`, if it has one.
pub(super) fn vocabulary_plan(plan: TensorPlan, tokens: &Embedding, has_head: bool) -> TensorPlan {
    let all = tokens.weight.lazy_shape()[0];
    let plan = plan.vocabulary("*tokens", all);
    if has_head { plan.vocabulary("head", all) } else { plan }
}

/// The same of a language model, whose last matrix is the head, or the table.
pub(super) fn language_plan(plan: TensorPlan, tokens: &Embedding, has_head: bool) -> TensorPlan {
    vocabulary_plan(plan, tokens, has_head).logits(if has_head { "head" } else { "*tokens" })
}

/// Returns the loss of `x`, `[batch, length, width]`, summed over the positions. There is one label for each position,
/// row by row. Labels are smoothed by the [share](Pass::label_smoothing) of the pass.
pub(super) fn output_loss(x: Tensor<3>, head: &Head, labels: &[i32], pass: &Pass) -> Tensor<1> {
    pass.head_loss(x.flatten(0, 1), head, labels)
}

/// The loss with the counts from which [`perplexity`] computes its score. The items of a batch that ranks share count once.
pub(super) fn counted(loss: Loss, pass: &Pass) -> Evaluation {
    let items = if pass.counts_batch() { loss.items } else { 0 };
    let counts = vec![loss.sum.clone().into_scalar::<f64>(), items as f64];
    Evaluation { loss, counts }
}

/// The exponential of the mean loss per token, from the sums of all [counts](counted).
pub(super) fn perplexity(counts: &[f64]) -> Score {
    let [sum, items] = counts.try_into().unwrap_or([f64::NAN; 2]);
    Score::lower("perplexity", (sum / items).exp())
}

/// Maps tokens `[batch, length]` to rows of the table, `[batch, length, width]`, in its dtype. Ranks may divide the vocabulary.
pub(super) fn embedded_tokens(table: &Embedding, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
    pass.embedding(table.weight.val(), ids)
}

/// Maps ids `[batch, length]` to rows of the table, `[batch, length, width]`, in its dtype.
pub(super) fn embedded(table: &Embedding, ids: Tensor<2, Int>) -> Tensor<3> {
    firebrick_kernels::embedding(table.weight.val(), ids)
}

/// Adds the rows of two tables, `[batch, length, width]`, in the dtype of the pass: those of the tokens `[batch, length]` in the
/// first, and of the ids `[batch, length]` or `[1, length]` in the second.
pub(super) fn embedded_sum(tables: [(&Embedding, Tensor<2, Int>); 2], pass: &Pass) -> Tensor<3> {
    let [(table, ids), (other, places)] = tables.map(|(table, ids)| (table.weight.val(), ids));
    let dtype = pass.dtype();
    if pass.shares_layers() {
        let rows = cast(pass.embedding(table, ids), dtype);
        return rows + cast(firebrick_kernels::embedding(other, places), dtype);
    }
    if [&table, &other].iter().all(|table| table.dtype() == dtype.into()) {
        return embedding_sum([(table, ids), (other, places)]);
    }
    // Tables that a strategy keeps in another dtype.
    let [rows, others] = [(table, ids), (other, places)]
        .map(|(table, ids)| cast(firebrick_kernels::embedding(table, ids), dtype));
    rows + others
}
