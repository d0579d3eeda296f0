//! AdamW with 8-bit moments compared with AdamW.

use burn::optim::GradientsParams;
use firebrick_kernels::optim::{BLOCK, dynamic_map};

use super::*;

fn device() -> Device {
    Device::flex()
}

/// Pseudo-random numbers, with magnitudes from 1e-4 to 1 in each row.
fn made_up(shape: [usize; 2], seed: usize) -> Tensor<2> {
    let number = |at: usize| {
        let at = (at * 7919 + seed * 104_729) as f32;
        (at * 0.37).sin() * 10f32.powf(-2.0 - 2.0 * (at * 0.011).cos())
    };
    let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, shape), &device())
}

type Stepped<O> = (Tensor<2>, Option<<O as Optimizer>::State<2>>);

fn steps<O: Optimizer>(optimizer: &O, shape: [usize; 2], count: usize) -> Stepped<O> {
    (1..=count).fold((made_up(shape, 0), None), |(param, state), seed| {
        optimizer.step(1e-2, param, made_up(shape, seed), state)
    })
}

fn bits(tensor: Tensor<2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

#[test]
fn the_first_update_is_adamws() {
    let optimizer = AdamW8bit::new().weight_decay(0.1);
    let shape = [5, 300];
    let (ours, _) = steps(&optimizer, shape, 1);
    let (exact, _) = steps(&AdamW::new().weight_decay(0.1), shape, 1);
    assert_eq!(bits(ours), bits(exact));
}

/// The moments equal those of f32 to within half the distance of two values of the map.
#[test]
fn moments_are_rounded_to_the_map_block_by_block() {
    let shape = [3, 2 * BLOCK + 40];
    let signed = dynamic_map(true);
    let (_, state) = steps(&AdamW8bit::new(), shape, 1);
    let state = state.unwrap();
    assert_eq!(state.largest[0].len(), 3 * 3, "a block ends with its row");
    let grad: Vec<f32> = made_up(shape, 1).into_data().iter().collect();
    for (row, grad) in grad.chunks(shape[1]).enumerate() {
        for (block, grad) in grad.chunks(BLOCK).enumerate() {
            let at = row * 3 + block;
            let most = grad.iter().fold(0f32, |most, grad| most.max(grad.abs()));
            assert!((state.largest[0][at] - 0.1 * most).abs() <= 1e-6 * most);
            for (index, grad) in grad.iter().enumerate() {
                let place = row * shape[1] + block * BLOCK + index;
                let m = signed[usize::from(state.codes[0][place])] * state.largest[0][at];
                let apart = (m - 0.1 * grad).abs() / state.largest[0][at];
                // The highest decade has 64 values for each sign, each lower one half as many.
                let relative = (0.1 * grad).abs() / state.largest[0][at];
                assert!(apart <= 0.0071f32.min(0.5 * relative + 3e-7) + 1e-6, "{relative}: {apart}");
            }
        }
    }
}

#[test]
fn halves_of_the_rows_are_updated_as_the_whole_is() {
    let optimizer = AdamW8bit::new();
    let (rows, row) = (6, 300);
    let update = |from: usize, to: usize| {
        let part = |seed| made_up([rows, row], seed).slice([from..to, 0..row]);
        let stepped = (1..=4)
            .fold((part(0), None), |(param, state), seed| optimizer.step(1e-2, param, part(seed), state));
        bits(stepped.0)
    };
    assert_eq!([update(0, 2), update(2, 6)].concat(), update(0, 6));
}

#[test]
fn a_state_goes_on_to_the_bit() {
    let model = burn::nn::LinearConfig::new(96, 64).init(&device().autodiff());
    let groups = Groups::new().weight_decay(0.1);
    let optimizer = || AdamW8bit::new().init(&model, &groups).unwrap();
    let grads = |seed| {
        let mut grads = GradientsParams::new();
        grads.register(model.weight.id, made_up([96, 64], seed));
        grads.register(model.bias.as_ref().unwrap().id, made_up([1, 64], seed).reshape([64]));
        grads
    };
    let mut first = optimizer();
    let once = first.step(1e-2, model.clone(), grads(1));
    let mut again = optimizer();
    again.load(first.states(None).unwrap(), &device()).unwrap();
    let [expected, found] = [&mut first, &mut again]
        .map(|optimizer| bits(optimizer.step(1e-2, once.clone(), grads(2)).weight.val().inner()));
    assert_eq!(found, expected);
}

/// 2 bytes per element, and 8 per block.
#[test]
fn a_record_holds_bytes() {
    let (_, state) = steps(&AdamW8bit::new(), [64, 300], 1);
    let mut sink = StateSink::default();
    state.unwrap().state_flatten("1", &mut sink);
    let bytes: usize = sink.tensors.iter().map(|(_, data)| data.as_bytes().len()).sum();
    assert_eq!(bytes, 64 * (2 * 300 + 8 * 2));
    assert_eq!(sink.tensors[0].1.dtype(), DType::U8);
}

#[test]
fn small_parameters_keep_their_moments_in_f32() {
    let device = device().autodiff();
    let model = burn::nn::LinearConfig::new(64, 32).init(&device);
    let grads = || {
        let input = Tensor::<2>::ones([1, 64], &device);
        GradientsParams::from_grads(model.forward(input).sum().backward(), &model)
    };
    let mut small = AdamW8bit::new().init(&model, &Groups::new()).unwrap();
    let mut exact = AdamW::new().init().unwrap();
    let (mut ours, mut theirs) = (model.clone(), model.clone());
    for _ in 0..3 {
        (ours, theirs) = (small.step(1e-2, ours, grads()), exact.step(1e-2, theirs, grads()));
    }
    assert_eq!(bits(ours.weight.val().inner()), bits(theirs.weight.val().inner()));
}

#[test]
fn zeros_stay_where_they_are() {
    let zeros = Tensor::<2>::zeros([2, 400], &device());
    let optimizer = AdamW8bit::new();
    let (param, state) = optimizer.step(1e-2, zeros.clone(), zeros.clone(), None);
    let (param, _) = optimizer.step(1e-2, param, zeros, state);
    assert_eq!(param.abs().max().into_scalar::<f32>(), 0.0);
}

/// Returns the loss over the updates: least squares of 96 inputs and 64 outputs, with noise.
fn losses<O: Optimizer>(optimizer: &O) -> Vec<f64> {
    let (inputs, noise) = (made_up([256, 96], 3) * 10.0, made_up([256, 64], 5));
    let outputs = inputs.clone().matmul(made_up([96, 64], 7) * 0.1) + noise;
    let (mut weights, mut state) = (Tensor::<2>::zeros([96, 64], &device()), None);
    let mut losses = Vec::new();
    for _ in 0..300 {
        let apart = inputs.clone().matmul(weights.clone()) - outputs.clone();
        losses.push(apart.clone().square().mean().into_scalar::<f64>());
        let grad = inputs.clone().transpose().matmul(apart) / 256.0;
        (weights, state) = optimizer.step(2e-3, weights, grad, state);
    }
    losses
}

#[test]
fn a_small_training_goes_as_in_f32() {
    let (ours, exact) = (losses(&AdamW8bit::new()), losses(&AdamW::new()));
    assert!(exact[299] < 0.06 * exact[0], "it must learn: {} {}", exact[0], exact[299]);
    for (step, (ours, exact)) in ours.iter().zip(&exact).enumerate() {
        assert!((ours - exact).abs() < 0.01 * exact, "step {step}: {ours} {exact}");
    }
    assert!((ours[299] - exact[299]).abs() < 1e-3 * exact[299], "{} {}", ours[299], exact[299]);
}
