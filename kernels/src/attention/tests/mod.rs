use burn::tensor::{Device, Distribution, FloatDType, Tensor, TensorData};
use proptest::prelude::*;

use super::{Attending, Reads, attention, attention_of_joint, composed};
use crate::device::is_flex;
use crate::{Draws, Samples, Site, testing};

#[cfg(feature = "cuda")]
mod flash;
mod ragged;
mod selected;

/// The shapes and options of an attention.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    key_heads: usize,
    group: usize,
    length: usize,
    read: usize,
    size: usize,
    /// The rows of the bias.
    bias: Option<usize>,
    cap: Option<f64>,
    drop: Option<f64>,
    starts: Option<Vec<usize>>,
    /// Bounds of each query's keys, as shares of 256; reversed ones are empty.
    bounds: Vec<[u8; 2]>,
    rows: usize,
}

impl Case {
    fn plain([batch, heads, length, size]: [usize; 4]) -> Self {
        let (read, key_heads) = (length, heads);
        let (bounds, rows) = (Vec::new(), 1);
        Self {
            batch,
            key_heads,
            group: 1,
            length,
            read,
            size,
            bias: None,
            cap: None,
            drop: None,
            starts: None,
            bounds,
            rows,
        }
    }

    fn shapes(&self) -> [[usize; 4]; 4] {
        let &Self { batch, key_heads, group, length, read, size, .. } = self;
        let (heads, key) = (key_heads * group, [batch, key_heads, read, size]);
        [[batch, heads, length, size], key, key, [self.bias.unwrap_or(1), heads, length, read]]
    }

    /// Causal ranges if there are no bounds.
    fn reads(&self) -> Reads {
        Reads::new([self.rows, self.length, self.read], |row, query| match self.bounds.len() {
            0 => 0..(query + 1).min(self.read),
            bounds => {
                let [from, to] = self.bounds[(row * self.length + query) % bounds];
                from as usize * self.read / 256..(to as usize * self.read).div_ceil(256)
            }
        })
    }

    /// Random inputs, the same for every dtype: numbers of bf16.
    fn inputs(&self) -> [TensorData; 4] {
        let mut at = 0u64;
        self.shapes().map(|shape| {
            let value = |_| {
                at += 1;
                let uniform = (Draws::mix(3, at) >> 40) as f32 / (1 << 24) as f32;
                half::bf16::from_f32(2.0 * uniform - 1.0).to_f32()
            };
            TensorData::new((0..shape.iter().product()).map(value).collect::<Vec<f32>>(), shape)
        })
    }
}

type Attend = fn(Tensor<4>, Tensor<4>, Tensor<4>, Option<Tensor<4>>, Attending) -> Tensor<4>;

/// The output, and the gradients of the inputs that are tracked.
fn results(
    case: &Case,
    attend: Attend,
    dtype: FloatDType,
    tracked: [bool; 4],
    device: &Device,
) -> Vec<Option<Vec<f64>>> {
    let inputs = case.inputs().map(|data| Tensor::<4>::from_data(data, device).cast(dtype));
    let mut at = 0;
    let inputs = inputs.map(|input| {
        at += 1;
        if tracked[at - 1] { input.require_grad() } else { input }
    });
    let [query, key, value, bias] = inputs.clone();
    let samples = case.starts.clone().map_or(Samples::Columns, |starts| Samples::Starting(starts.into()));
    let site = Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &samples, from: 0 };
    let reads = case.reads();
    let how =
        Attending { reads: &reads, scale: 0.7, cap: case.cap, dropout: case.drop.map(|prob| (prob, site)) };
    let y = attend(query, key, value, case.bias.map(|_| bias), how);
    let count = y.shape().num_elements();
    let slopes: Vec<f32> = (0..count).map(|at| ((at * 7919) % 17) as f32 / 8.0 - 1.0).collect();
    let slopes = Tensor::<4>::from_data(TensorData::new(slopes, y.dims()), device).cast(dtype);
    let values = |x: Tensor<4>| -> Vec<f64> { x.into_data().iter().collect() };
    let output = values(y.clone());
    let mut found = vec![Some(output), None, None, None, None];
    if tracked[..3].contains(&true) || (tracked[3] && case.bias.is_some()) {
        let grads = (y * slopes).sum().backward();
        for (found, input) in found[1..].iter_mut().zip(inputs) {
            *found = input.grad(&grads).map(values);
        }
    }
    found
}

fn assert_close(case: &Case, found: &[Option<Vec<f64>>], expected: &[Option<Vec<f64>>], near: f64) {
    for (name, (found, expected)) in
        ["output", "query", "key", "value", "bias"].into_iter().zip(found.iter().zip(expected))
    {
        let (Some(found), Some(expected)) = (found, expected) else {
            assert_eq!(found.is_some(), expected.is_some(), "{name} of {case:?}");
            continue;
        };
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(1f64, |most, value| most.max(value.abs()));
        // A gradient is a sum over queries of terms that may cancel, such as all of a key that is the only one; each has
        // the rounding of an inner product with the output. That of a shared bias is also a sum over the batch.
        let batches = if name == "bias" && case.bias == Some(1) { case.batch } else { 1 };
        let terms = (batches * case.length * case.group * case.size) as f64;
        let near = if name == "output" { near } else { near * (terms.sqrt() / 8.0).max(1.0) };
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let distance = (found - expected).abs();
            assert!(distance <= near * largest, "{name}[{at}] = {found}, not {expected}, of {case:?}");
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (
        1usize..4,
        1usize..3,
        1usize..4,
        prop_oneof![1usize..20, 60usize..150],
        prop_oneof![1usize..20, 60usize..150],
    );
    let sizes = prop_oneof![Just(1usize), Just(5), Just(16), Just(32), Just(80)];
    let bounds = prop::collection::vec(any::<[u8; 2]>(), 1..40);
    (shape, sizes, 0usize..3, any::<[bool; 5]>(), bounds).prop_map(
        |(
            (batch, key_heads, group, length, read),
            size,
            bias,
            [capped, drop, starts, causal, alike],
            bounds,
        )| Case {
            batch,
            key_heads,
            group,
            length,
            read,
            size,
            bias: [None, Some(1), Some(batch)][bias],
            cap: capped.then_some(1.5),
            drop: drop.then_some(0.3),
            starts: starts.then(|| (0..batch).map(|row| row * 2).collect()),
            bounds: if causal { Vec::new() } else { bounds },
            rows: if alike { 1 } else { batch },
        },
    )
}

const ALL: [bool; 4] = [true; 4];

/// How near results are to those in f64, by dtype. On a GPU the weights are rounded to the dtype of the inputs, and
/// products may be summed in f16.
fn nearness(device: &Device) -> [(FloatDType, f64); 4] {
    let halves = if is_flex(device) { [2e-2, 3e-3] } else { [4e-2, 1e-2] };
    [
        (FloatDType::F32, 3e-6),
        (FloatDType::BF16, halves[0]),
        (FloatDType::F16, halves[1]),
        (FloatDType::F64, 1e-12),
    ]
}

proptest! {
    #![proptest_config(testing::cases(48))]

    #[test]
    fn outputs_and_gradients_are_those_of_the_composed_one(case in cases()) {
        let device = testing::device().autodiff();
        let expected = results(&case, composed, FloatDType::F64, ALL, &Device::flex().autodiff());
        for (dtype, near) in testing::computed(nearness(&device)) {
            assert_close(&case, &results(&case, attention, dtype, ALL, &device), &expected, near);
        }
    }

    #[test]
    fn frozen_inputs_get_no_gradient(case in cases(), tracked in any::<[bool; 4]>()) {
        let device = testing::device().autodiff();
        let all = results(&case, attention, FloatDType::F32, ALL, &device);
        let some = results(&case, attention, FloatDType::F32, tracked, &device);
        let untracked = results(&case, attention, FloatDType::F32, [false; 4], &device.clone().inner());
        prop_assert_eq!(&untracked[0], &all[0]);
        prop_assert_eq!(&results(&case, attention, FloatDType::F32, ALL, &device), &all);
        for (at, found) in some.iter().enumerate() {
            let is_kept = at == 0 || (tracked[at - 1] && (at < 4 || case.bias.is_some()));
            prop_assert_eq!(found.is_some(), is_kept && all[at].is_some(), "{}", at);
            // Fewer gradients may be summed in another order.
            assert_close(&case, std::slice::from_ref(found), &[all[at].clone().filter(|_| is_kept)], 3e-6);
        }
    }
}

#[test]
fn any_number_of_threads_computes_the_same_bits() {
    let device = testing::device().autodiff();
    let long = Case::plain([1, 2, 700, 16]);
    let shared = Case { bias: Some(1), drop: Some(0.1), ..Case::plain([3, 2, 200, 8]) };
    for case in [long, shared] {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| results(&case, attention, FloatDType::F32, ALL, &device))
        };
        let one = run(1);
        assert!([2, 3, 8].into_iter().all(|threads| run(threads) == one), "{case:?}");
    }
}

/// Every head of a joint projection, its gradient, and the same of separate inputs.
#[test]
fn a_joint_projection_is_read_where_it_stands() {
    let device = testing::device().autodiff();
    for (dtype, length) in
        testing::computed([(FloatDType::F32, 7), (FloatDType::F32, 130), (FloatDType::BF16, 70)])
    {
        let joint = Tensor::<3>::random([2, length, 3 * 20], Distribution::Normal(0.0, 1.0), &device);
        let joint = joint.cast(dtype).require_grad();
        let reads = Reads::causal(length);
        let how = Attending { reads: &reads, scale: 0.5, cap: None, dropout: None };
        let parts = [0, 1, 2]
            .map(|part| joint.clone().narrow(2, part * 20, 20).reshape([2, length, 4, 5]).swap_dims(1, 2));
        let [query, key, value] = parts;
        let gradient = |y: Tensor<4>| {
            let grads = (y.clone() * y.clone()).sum().backward();
            (y.into_data(), joint.grad(&grads).unwrap().into_data())
        };
        let (y, of_joint) = gradient(attention_of_joint(joint.clone(), 4, how));
        let (expected, of_parts) = gradient(attention(query, key, value, None, how));
        y.assert_eq(&expected, true);
        of_joint.assert_eq(&of_parts, true);
    }
}

/// Views are read as their copies are: turned, narrowed and broadcast.
#[test]
fn views_agree_with_copies() {
    let device = testing::device().autodiff();
    let x = Tensor::<4>::random([3, 90, 4, 12], Distribution::Normal(0.0, 1.0), &device);
    let views = [
        x.clone().swap_dims(1, 2),
        x.clone().swap_dims(1, 2).slice([0..3, 0..4, 5..80, 0..12]),
        x.clone().swap_dims(1, 3).narrow(1, 2, 4),
        x.clone().narrow(1, 3, 1).swap_dims(1, 2).expand([3, 4, 70, 12]),
    ];
    for view in views {
        let [_, _, length, size] = view.dims();
        let copy = Tensor::<4>::from_data(view.clone().into_data(), &device);
        let reads = Reads::causal(length);
        let bias = Tensor::<4>::ones([1, 4, length, length], &device).tril(0);
        let run = |x: Tensor<4>, bias: Tensor<4>| {
            let [query, key, value] = [x.clone(), x.clone(), x].map(Tensor::require_grad);
            let how = Attending { reads: &reads, scale: 1.0 / size as f64, cap: None, dropout: None };
            let y = attention(query.clone(), key.clone(), value, Some(bias), how);
            let grads = y.clone().sum().backward();
            [y, query.grad(&grads).unwrap(), key.grad(&grads).unwrap()].map(Tensor::into_data)
        };
        let (of_view, of_copy) =
            (run(view.detach(), bias.clone().swap_dims(2, 3).swap_dims(2, 3)), run(copy, bias));
        assert_eq!(of_view, of_copy);
    }
}

#[test]
fn queries_that_read_nothing_give_zeros_and_nan_stays_in_its_rows() {
    let device = testing::device().autodiff();
    let case = Case { bounds: vec![[0, 0], [0, 255]], ..Case::plain([1, 1, 100, 4]) };
    let found = results(&case, attention, FloatDType::F32, ALL, &device);
    let [output, of_query] = [0, 1].map(|at| found[at].clone().unwrap());
    for (at, values) in output.chunks(4).zip(of_query.chunks(4)).enumerate() {
        let is_zero = values == (&[0.0; 4], &[0.0; 4]);
        assert_eq!(is_zero, at % 2 == 0, "{at}: {values:?}");
    }

    let reads = Reads::causal(100);
    let how = Attending { reads: &reads, scale: 1.0, cap: None, dropout: None };
    for odd in [f32::NAN, f32::INFINITY] {
        let x = Tensor::<4>::random([1, 2, 100, 4], Distribution::Default, &device);
        let bad = x.clone().slice_fill([0..1, 0..1, 70..71, 0..1], odd);
        let y = attention(bad, x.clone(), x.clone(), None, how);
        let y: Vec<f32> = y.into_data().iter().collect();
        for (at, row) in y.chunks(4).enumerate() {
            assert_eq!(row.iter().all(|value| value.is_nan()), at == 70, "{odd}: {at}: {row:?}");
        }
    }
    // A score of -∞ is a weight of 0.
    let x = Tensor::<4>::ones([1, 1, 3, 4], &device);
    let key = x.clone().slice_fill([0..1, 0..1, 0..1, 0..1], f32::NEG_INFINITY);
    let y = attention(x.clone(), key, x.clone(), None, Attending { reads: &Reads::full(3, 3), ..how });
    assert_eq!(y.into_data(), x.into_data());
}

#[test]
fn empty_tensors_stay_empty() {
    let device = testing::device().autodiff();
    for shape in [[0, 2, 3, 4], [2, 2, 0, 4], [1, 2, 3, 0]] {
        let x = Tensor::<4>::zeros(shape, &device).require_grad();
        let reads = Reads::causal(shape[2]);
        let how = Attending { reads: &reads, scale: 1.0, cap: None, dropout: None };
        let y = attention(x.clone(), x.clone(), x.clone(), None, how);
        assert_eq!(y.dims(), shape);
    }
    let reads = Reads::full(3, 0);
    let how = Attending { reads: &reads, scale: 1.0, cap: None, dropout: None };
    let (query, key) = (Tensor::<4>::ones([1, 2, 3, 4], &device), Tensor::<4>::ones([1, 2, 0, 4], &device));
    let y = attention(query, key.clone(), key, None, how);
    assert!(y.into_data().iter::<f32>().all(|value| value == 0.0));
}
