//! A vocabulary that the ranks of a tensor axis divide: its embedding, and the loss of its logits, which no rank has all of.

use burn::tensor::{DType, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData};
use firebrick_kernels::{Head, HeadWeight, cast, embedding, head_loss, rows_of_logits};
use firebrick_world::{Communicator, WorldError};

use super::Pass;
use super::segment::graft;
use crate::OwnTokens;

impl Pass {
    /// Maps ids `[batch, length]` to rows of a table of embeddings, `[batch, length, width]`, in its dtype. Where ranks
    /// [divide](crate::TensorPlan::vocabulary) the vocabulary, each looks up its own tokens, and the rows are summed over them
    /// (Shoeybi et al., 2019, arXiv:1909.08053, section 3).
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    ///
    /// # Panics
    ///
    /// If an id is not in the vocabulary.
    pub fn embedding(&self, table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
        let Some(OwnTokens { own, .. }) = self.plan.own_tokens() else { return embedding(table, ids) };
        let (start, last) = (own.start as i64, own.len() as i64 - 1);
        let ids = ids.sub_scalar(start);
        let is_own = ids.clone().greater_equal_elem(0).bool_and(ids.clone().lower_equal_elem(last));
        let rows = embedding(table, ids.clamp(0, last));
        let mask = is_own.float().cast(FloatDType::from(rows.dtype()));
        self.after_rows(rows * mask.unsqueeze_dim(2))
    }

    /// Returns the [`head_loss`] of `hidden`, `[rows, width]`, in f32, with labels [smoothed](Self::label_smoothing) as the pass
    /// says. Where ranks [divide](crate::TensorPlan::vocabulary) the vocabulary, each has the logits of its own tokens, and they
    /// exchange three numbers for each row (Shoeybi et al., 2019, arXiv:1909.08053, section 3), beside the gradient of `hidden`.
    ///
    /// If another rank is gone, the loss is 0, and [`check`](Self::check) returns the error.
    ///
    /// # Panics
    ///
    /// The same as [`head_loss`].
    pub fn head_loss(&self, hidden: Tensor<2>, head: &Head, labels: &[i32]) -> Tensor<1> {
        let smoothing = self.label_smoothing();
        let (Some(ranks), Some(own)) = (self.plan.tensor(), self.plan.own_tokens()) else {
            return head_loss(hidden, head, labels, smoothing);
        };
        let device = hidden.device();
        let strategy = device.gradient_checkpointing_strategy();
        let lift = |value: Tensor<1>| match strategy {
            None => value,
            Some(strategy) => Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy),
        };
        let with_loss = (0..).zip(labels).filter(|(_, label)| **label >= 0);
        let (rows, labels): (Vec<i32>, Vec<i32>) = with_loss.map(|(row, label)| (row, *label)).unzip();
        let is_token = |label: &i32| (*label as usize) < own.all;
        assert!(labels.iter().all(is_token), "Pass: a label is none of the {} tokens", own.all);
        let divided = DividedHead::new(head, own.clone(), ranks, smoothing);
        let hidden = cast(hidden, dtype_of(head));
        let (hidden, found) = match rows.is_empty() {
            // The backward pass still runs through all layers, since other ranks of a context axis have labels.
            true => (hidden.clone(), Ok(divided.nothing(&hidden))),
            false => {
                let rows = Tensor::<1, Int>::from_data(&rows[..], &device);
                let hidden = hidden.select(0, rows);
                (hidden.clone(), divided.loss(hidden.inner(), &labels, strategy.is_some()))
            }
        };
        let found = found.unwrap_or_else(|error| {
            self.plan.report(error.into());
            divided.nothing(&hidden)
        });
        let sum = lift(found.sum);
        let gradients = found.gradients.filter(|_| strategy.is_some());
        let Some([of_hidden, of_weight, of_bias]) = gradients else { return sum };
        let zero = sum.zeros_like().detach();
        let times =
            |gradient: Tensor<2>, dtype| move |by: Tensor<1>| cast(gradient.clone() * by.unsqueeze(), dtype);
        let (HeadWeight::Embedding(weight) | HeadWeight::Linear(weight)) = &head.weight;
        let dtype = dtype_of(head);
        let sum = graft(hidden, sum, times(of_hidden, dtype));
        let sum = sum + graft(weight.clone(), zero.clone(), times(of_weight, dtype));
        match &head.bias {
            None => sum,
            Some(bias) => {
                let times = times(of_bias, dtype);
                sum + graft(bias.clone(), zero, move |by| times(by).squeeze_dim::<1>(0))
            }
        }
    }

    /// Returns the logits of a head for `hidden`, `[.., width]`, of all tokens: `[.., tokens]`. Where ranks divide the vocabulary,
    /// they gather one another's, without a gradient: to write texts, which needs those of a few positions.
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    ///
    /// # Panics
    ///
    /// If the widths differ.
    pub fn logits<const D: usize>(&self, hidden: Tensor<D>, head: &Head) -> Tensor<D> {
        let (Some(ranks), Some(OwnTokens { own, all })) = (self.plan.tensor(), self.plan.own_tokens()) else {
            return head.logits(hidden);
        };
        let mut shape = hidden.dims();
        let [rows, width] = [shape[..D - 1].iter().product(), shape[D - 1]];
        let logits = head.logits(hidden.reshape([rows, width]));
        shape[D - 1] = *all;
        // Ranks have up to one token more than others.
        let most = all.div_ceil(ranks.size());
        let missing = Tensor::zeros([rows, most - own.len()], (&logits.device(), logits.dtype()));
        let gathered = match ranks.all_gather(Tensor::cat(vec![logits.clone(), missing], 1)) {
            Ok(gathered) => gathered,
            Err(error) => {
                self.plan.report(error.into());
                return Tensor::zeros(shape, (&logits.device(), logits.dtype()));
            }
        };
        let of = |rank: usize| gathered.clone().narrow(0, rank * rows, rows);
        let own = |rank: usize| crate::model_parallel::share(*all, rank, ranks.size()).len();
        let parts = (0..ranks.size()).map(|rank| of(rank).narrow(1, 0, own(rank)));
        Tensor::cat(parts.collect(), 1).reshape(shape)
    }

    /// Returns the likeliest token of each row of `hidden`, `[rows, width]`, without all logits at once: `[rows]`.
    ///
    /// # Panics
    ///
    /// If the widths differ.
    pub fn likeliest(&self, hidden: Tensor<2>, head: &Head) -> Tensor<1, Int> {
        if self.plan.own_tokens().is_none() {
            return head.likeliest(hidden);
        }
        let [rows, _] = hidden.dims();
        let size = rows_of_logits(head_tokens(head));
        let of_chunk = |start: usize| {
            let chunk = hidden.clone().narrow(0, start, size.min(rows - start));
            self.logits(chunk, head).argmax(1).squeeze_dim(1)
        };
        Tensor::cat((0..rows.max(1)).step_by(size).map(of_chunk).collect(), 0)
    }
}

fn dtype_of(head: &Head) -> FloatDType {
    let (HeadWeight::Embedding(weight) | HeadWeight::Linear(weight)) = &head.weight;
    FloatDType::from(weight.dtype())
}

/// The number of tokens that a head has the weights of.
fn head_tokens(head: &Head) -> usize {
    match &head.weight {
        HeadWeight::Embedding(weight) => weight.dims()[0],
        HeadWeight::Linear(weight) => weight.dims()[1],
    }
}

/// The sum of losses over rows, and its gradients by the hidden state of these rows, by the weight and by the bias, if they are
/// wanted: each with two axes, in f32.
struct LossAndGradients {
    sum: Tensor<1>,
    gradients: Option<[Tensor<2>; 3]>,
}

/// A rank's part of a head, outside autodiff.
struct DividedHead<'a> {
    /// `[width, tokens]`.
    weight: Tensor<2>,
    /// Whether the weight of the head is `[tokens, width]`.
    is_embedding: bool,
    bias: Option<Tensor<1>>,
    cap: Option<f64>,
    tokens: OwnTokens,
    ranks: &'a Communicator,
    smoothing: f64,
}

impl<'a> DividedHead<'a> {
    fn new(head: &Head, tokens: OwnTokens, ranks: &'a Communicator, smoothing: f64) -> Self {
        let (weight, is_embedding) = match &head.weight {
            HeadWeight::Embedding(weight) => (weight.clone().inner().transpose(), true),
            HeadWeight::Linear(weight) => (weight.clone().inner(), false),
        };
        let bias = head.bias.clone().map(Tensor::inner);
        Self { weight, is_embedding, bias, cap: head.cap, tokens, ranks, smoothing }
    }

    /// The loss of no rows.
    fn nothing(&self, hidden: &Tensor<2>) -> LossAndGradients {
        let zeros = |shape: [usize; 2]| Tensor::<2>::zeros(shape, (&self.weight.device(), DType::F32));
        let [width, tokens] = self.weight.dims();
        let of_weight = if self.is_embedding { [tokens, width] } else { [width, tokens] };
        let gradients = [hidden.dims(), of_weight, [1, tokens]].map(zeros);
        LossAndGradients { sum: zeros([1, 1]).squeeze_dim(0), gradients: Some(gradients) }
    }

    /// Computes the losses in chunks of rows, and turns each chunk into gradients before the next.
    fn loss(
        &self,
        hidden: Tensor<2>,
        labels: &[i32],
        with_gradients: bool,
    ) -> Result<LossAndGradients, WorldError> {
        let ([rows, _], device) = (hidden.dims(), hidden.device());
        let size = rows_of_logits(self.tokens.own.len());
        let mut sum = Tensor::<1>::zeros([1], (&device, DType::F32));
        let mut of_hidden = Vec::new();
        let mut whole: Option<[Tensor<2>; 2]> = None;
        for start in (0..rows).step_by(size) {
            let labels = &labels[start..rows.min(start + size)];
            let chunk = hidden.clone().narrow(0, start, labels.len());
            let (losses, slopes) = self.chunk(chunk.clone(), labels, with_gradients)?;
            sum = sum + losses;
            let Some(slopes) = slopes else { continue };
            let of_bias = slopes.clone().sum_dim(0);
            // In f16, small probabilities would be 0.
            let dtype = match FloatDType::from(chunk.dtype()) {
                FloatDType::F16 => FloatDType::F32,
                other => other,
            };
            let [slopes, chunk, weight] = [slopes, chunk, self.weight.clone()].map(|x| cast(x, dtype));
            let wide = |x| cast(x, FloatDType::F32);
            of_hidden.push(wide(slopes.clone().matmul(weight.transpose())));
            let of_weight = match self.is_embedding {
                true => slopes.transpose().matmul(chunk),
                false => chunk.transpose().matmul(slopes),
            };
            let of_weight = wide(of_weight);
            whole = Some(match whole {
                None => [of_weight, of_bias],
                Some([weight, bias]) => [weight + of_weight, bias + of_bias],
            });
        }
        let Some([of_weight, of_bias]) = whole else { return Ok(LossAndGradients { sum, gradients: None }) };
        // Each rank has the part of its own tokens.
        let of_hidden = self.ranks.all_reduce(Tensor::cat(of_hidden, 0))?;
        Ok(LossAndGradients { sum, gradients: Some([of_hidden, of_weight, of_bias]) })
    }

    /// Returns the sum of the losses of some rows, and its gradient by their logits, `[rows, own tokens]`.
    fn chunk(
        &self,
        hidden: Tensor<2>,
        labels: &[i32],
        with_gradients: bool,
    ) -> Result<(Tensor<1>, Option<Tensor<2>>), WorldError> {
        let (rows, device) = (labels.len(), hidden.device());
        let OwnTokens { own, all } = &self.tokens;
        let logits = hidden.matmul(self.weight.clone());
        let logits = match &self.bias {
            Some(bias) => logits + bias.clone().unsqueeze(),
            None => logits,
        };
        let logits = cast(logits, FloatDType::F32);
        let logits = match self.cap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        };
        let largest = self.ranks.all_gather(logits.clone().max_dim(1))?;
        let largest = largest.reshape([self.ranks.size(), rows]).max_dim(0).reshape([rows, 1]);
        let powers = (logits.clone() - largest.clone()).exp();
        let places = labels.iter().map(|label| (*label as usize).wrapping_sub(own.start));
        let is_own: Vec<f32> = places.clone().map(|place| f32::from(place < own.len())).collect();
        let places: Vec<i64> = places.map(|place| if place < own.len() { place as i64 } else { 0 }).collect();
        let places = Tensor::<2, Int>::from_data(TensorData::new(places, [rows, 1]), &device);
        let is_own = Tensor::<2>::from_data(TensorData::new(is_own, [rows, 1]), &device);
        let of_label = logits.clone().gather(1, places.clone()) * is_own.clone();
        let parts = vec![powers.clone().sum_dim(1), of_label, logits.clone().sum_dim(1)];
        let sums = self.ranks.all_reduce(Tensor::cat(parts, 1))?;
        let [power, of_label, of_all] = [0, 1, 2].map(|at| sums.clone().narrow(1, at, 1));
        let (kept, spread) = (1.0 - self.smoothing, self.smoothing / *all as f64);
        let losses = power.clone().log() + largest - of_label * kept - of_all * spread;
        if !with_gradients {
            return Ok((losses.sum(), None));
        }
        let slopes = powers / power - spread;
        let slopes = slopes.scatter(1, places, is_own * -kept, IndexingUpdateOp::Add);
        let slopes = match self.cap {
            Some(cap) => slopes * ((logits / cap).square().neg() + 1.0),
            None => slopes,
        };
        Ok((losses.sum(), Some(slopes)))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use burn::nn::{Embedding, EmbeddingConfig};
    use burn::tensor::Distribution;
    use firebrick_world::World;

    use super::*;
    use crate::model_parallel::Factors;
    use crate::{ModelParts, Pipelined, SegmentPlan, TensorPlan, testing};

    const TOKENS: usize = 11;
    const WIDTH: usize = 4;

    /// What a pass computes of a vocabulary, with gradients.
    #[derive(Debug)]
    struct Found {
        loss: Tensor<1>,
        of_hidden: Tensor<2>,
        of_weight: Tensor<2>,
        of_bias: Tensor<1>,
        rows: Tensor<3>,
        of_table: Tensor<2>,
        logits: Tensor<2>,
        likeliest: Vec<i64>,
    }

    impl Found {
        /// `own` are the tokens of this rank.
        fn of(pass: &Pass, own: Range<usize>, is_linear: bool, cap: Option<f64>, dtype: FloatDType) -> Self {
            let device = testing::device().autodiff();
            let wave = |step: f32, shape: [usize; 2]| {
                let values: Vec<f32> = (0..shape[0] * shape[1]).map(|at| (at as f32 * step).sin()).collect();
                Tensor::<2>::from_data(TensorData::new(values, shape), &device)
            };
            let [table, bias] = [wave(0.7, [TOKENS, WIDTH]), wave(0.3, [1, TOKENS])];
            let table = table.narrow(0, own.start, own.len()).require_grad();
            let bias = bias.narrow(1, own.start, own.len()).squeeze_dim::<1>(0).require_grad();
            let weight = cast(table.clone(), dtype);
            let weight = match is_linear {
                true => HeadWeight::Linear(weight.transpose()),
                false => HeadWeight::Embedding(weight),
            };
            let head = Head { weight, bias: Some(cast(bias.clone(), dtype)), cap };
            let hidden = wave(1.1, [5, WIDTH]).require_grad();
            let loss = pass.head_loss(hidden.clone(), &head, &[0, -100, 10, 4, 7]);
            let grads = (loss.clone() * 3.0).backward();
            let ids = Tensor::<2, Int>::from_data([[0, 10, 4], [4, 5, 9]], &device);
            let rows = pass.embedding(table.clone(), ids);
            let squares = rows.clone().powf_scalar(2.0).sum().backward();
            Self {
                loss: loss.inner(),
                of_hidden: hidden.grad(&grads).unwrap(),
                of_weight: table.grad(&grads).unwrap(),
                of_bias: bias.grad(&grads).unwrap(),
                rows: rows.inner(),
                of_table: table.grad(&squares).unwrap(),
                logits: pass.logits(hidden.clone(), &head).inner(),
                likeliest: pass.likeliest(hidden, &head).into_data().iter().collect(),
            }
        }
    }

    fn near<const D: usize>(found: Tensor<D>, expected: Tensor<D>, dtype: FloatDType) {
        assert_eq!(found.dims(), expected.dims());
        let most: f32 =
            (cast(found, FloatDType::F32) - cast(expected, FloatDType::F32)).abs().max().into_scalar();
        assert!(most < if dtype == FloatDType::F32 { 1e-5 } else { 3e-2 }, "{dtype:?}: {most}");
    }

    #[test]
    fn ranks_that_divide_a_vocabulary_compute_what_one_rank_does() {
        let device = testing::device().autodiff();
        for (is_linear, cap, smoothing, dtype) in [
            (false, None, 0.0, FloatDType::F32),
            (true, Some(1.5), 0.2, FloatDType::F32),
            (false, Some(2.0), 0.0, FloatDType::F32),
            (true, None, 0.0, FloatDType::F16),
            (false, Some(2.0), 0.1, FloatDType::BF16),
        ] {
            let pass = || Pass::train(&device).smoothing_labels(smoothing);
            let whole = &Found::of(&pass(), 0..TOKENS, is_linear, cap, dtype);
            let one = |rank: Communicator| {
                let model: Vec<Embedding> = vec![EmbeddingConfig::new(TOKENS, WIDTH).init(&device)];
                let plan = TensorPlan::new().vocabulary("0", TOKENS);
                let parts = ModelParts::of(&model, &plan, rank, &Pipelined::default(), None, &Factors::new())
                    .unwrap();
                let own = parts.own_tokens().unwrap().own.clone();
                assert_eq!(
                    parts.part(model[0].weight.id, &[TOKENS, WIDTH]).unwrap().ranges,
                    std::slice::from_ref(&own)
                );
                let mut plan = SegmentPlan::of(&model);
                plan.divide_model(Arc::new(parts));
                let pass = pass().planned(Arc::new(plan));
                let found = Found::of(&pass, own.clone(), is_linear, cap, dtype);
                pass.check().unwrap();
                near(found.loss, whole.loss.clone(), dtype);
                near(found.of_hidden, whole.of_hidden.clone(), dtype);
                near(found.of_weight, whole.of_weight.clone().narrow(0, own.start, own.len()), dtype);
                near(found.of_bias, whole.of_bias.clone().narrow(0, own.start, own.len()), dtype);
                near(found.rows, whole.rows.clone(), dtype);
                near(found.of_table, whole.of_table.clone().narrow(0, own.start, own.len()), dtype);
                near(found.logits, whole.logits.clone(), dtype);
                if dtype == FloatDType::F32 {
                    assert_eq!(found.likeliest, whole.likeliest);
                }
                own.len()
            };
            let one = &one;
            let ranks = World::threads(3).join().unwrap();
            let owned: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || one(rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(owned, [4, 4, 3]);
        }
    }

    #[test]
    fn one_rank_computes_the_loss_of_the_kernel() {
        let device = testing::device().autodiff();
        let hidden = Tensor::<2>::random([3, WIDTH], Distribution::Default, &device);
        let weight = HeadWeight::Embedding(Tensor::random([TOKENS, WIDTH], Distribution::Default, &device));
        let head = Head { weight, bias: None, cap: None };
        let found =
            Pass::train(&device).smoothing_labels(0.1).head_loss(hidden.clone(), &head, &[1, 2, -100]);
        assert_eq!(found.into_data(), head_loss(hidden, &head, &[1, 2, -100], 0.1).into_data());
    }
}
