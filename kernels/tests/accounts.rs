//! Memory accounts, which measure the ranks that run as threads of one process; and what operations keep.

use std::sync::{Arc, Barrier};
use std::thread;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, FloatDType, Tensor, activation::softmax};
use firebrick_kernels::memory::{Account, Beyond, Counting, InTransit, Usage, in_use, reset_peak};
use firebrick_kernels::{
    Gate, Gelu, Head, HeadWeight, NormKind, gated, gelu, head_loss, linear, norm, settle_products,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEGABYTE: usize = 1 << 20;

/// Returns the bytes on this thread's account.
fn live() -> usize {
    Usage::of_process().unwrap().live
}

#[test]
fn a_block_is_credited_to_its_account_whoever_frees_or_resizes_it() {
    let (one, other) = (Account::new(), Account::new());
    let on_one = one.enter();
    let mut block = vec![7u8; MEGABYTE];
    assert_eq!(live(), MEGABYTE);
    drop(on_one);

    let on_other = other.enter();
    block.resize(3 * MEGABYTE, 8);
    block.shrink_to_fit();
    assert_eq!([one.usage(), other.usage()].map(|usage| usage.unwrap().live), [3 * MEGABYTE, 0]);
    // A block that moves exists twice for a moment.
    assert!((3 * MEGABYTE..=5 * MEGABYTE).contains(&one.usage().unwrap().peak));
    assert!(
        block[..MEGABYTE].iter().all(|byte| *byte == 7) && block[MEGABYTE..].iter().all(|byte| *byte == 8)
    );
    drop(on_other);

    thread::spawn(move || drop(block)).join().unwrap();
    assert_eq!([one.usage(), other.usage()].map(|usage| usage.unwrap().live), [0, 0]);
    assert!(one.usage().unwrap().peak >= 3 * MEGABYTE);
}

#[test]
fn blocks_keep_their_alignment_and_content() {
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Page(u8);
    #[derive(Clone, Copy)]
    #[repr(align(32))]
    struct Wide(u8);

    let account = Account::new();
    let _on_it = account.enter();
    let (mut pages, mut wides, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..100 {
        pages.push(Page(i));
        wides.push(Wide(i));
        bytes.push(i);
        assert!(pages.as_ptr().addr().is_multiple_of(4096));
        assert!(wides.as_ptr().addr().is_multiple_of(32));
    }
    assert!((0..100).all(|i| [pages[i].0, wides[i].0, bytes[i]] == [i as u8; 3]));
    let capacities = pages.capacity() * 4096 + wides.capacity() * 32 + bytes.capacity();
    assert_eq!(live(), capacities);
    for size in [0, 1, 15, 16, 17, 4095, MEGABYTE + 3] {
        let before = live();
        let zeros = vec![0u8; size];
        assert_eq!(live(), before + size);
        assert!(zeros.iter().all(|byte| *byte == 0));
    }
    drop((pages, wides, bytes));
    assert_eq!(live(), 0);
    // A reservation beyond the address space returns an error, and the header does not overflow its size.
    assert!(Vec::<u8>::new().try_reserve_exact(isize::MAX as usize).is_err());
    assert!(vec![1u8; 8].try_reserve_exact(isize::MAX as usize - 8).is_err());
}

#[test]
fn without_an_account_the_whole_process_is_measured() {
    let account = Account::new();
    let block = {
        let _on_it = account.enter();
        vec![1u8; 256 * MEGABYTE]
    };
    // Other tests run at the same time, but none of them holds this much.
    assert!(live() > 256 * MEGABYTE);
    assert!(Usage::of_all_accounts().unwrap().live > 256 * MEGABYTE);
    let _on_it = account.enter();
    assert_eq!(live(), 256 * MEGABYTE);
    drop(block);
    assert_eq!(live(), 0);
    assert_eq!(Usage::of_process().unwrap().peak, 256 * MEGABYTE);
    reset_peak();
    assert_eq!(Usage::of_process().unwrap().peak, 0);
}

/// A thread's first product allocates panels that the thread keeps: they are not part of the work that is measured.
#[test]
fn a_product_puts_its_result_alone_on_the_account() {
    let device = Device::flex();
    let x = Tensor::<2>::ones([700, 700], &device);
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let x = firebrick_kernels::cast(x.clone(), dtype);
        let usage = thread::spawn(move || {
            let account = Account::new();
            let _on_it = account.enter();
            let result = firebrick_kernels::matmul(x.clone(), x.transpose());
            (account.usage().unwrap(), result.into_data().bytes().len())
        });
        let (usage, bytes) = usage.join().unwrap();
        assert!(usage.live >= bytes && usage.peak < bytes + (64 << 10), "{usage:?} for {bytes}");
    }
}

/// Rows of a matrix that is large enough for Flex to distribute each operation among threads.
const ROWS: usize = 1024;

#[test]
fn results_are_on_the_account_of_the_thread_that_asks_for_them() {
    let device = Device::flex();
    let matrix = |scale: f32| {
        Tensor::<1, burn::tensor::Int>::arange(0..(ROWS * ROWS) as i64, &device)
            .float()
            .reshape([ROWS, ROWS])
            .sin()
            * scale
    };
    let (a, b) = (matrix(1.0), matrix(0.5));
    let rows = Tensor::<1, burn::tensor::Int>::arange(0..ROWS as i64, &device);
    type Op<'a> = (&'a str, Box<dyn Fn() -> Tensor<2> + 'a>);
    let ops: [Op; 9] = [
        ("matmul", Box::new(|| a.clone().matmul(b.clone()))),
        ("of a transposed", Box::new(|| a.clone().transpose().matmul(b.clone()))),
        ("add", Box::new(|| a.clone() + b.clone())),
        ("exp", Box::new(|| a.clone().exp())),
        ("softmax", Box::new(|| softmax(a.clone(), 1))),
        ("cat", Box::new(|| Tensor::cat(vec![a.clone(), b.clone()], 0))),
        ("select", Box::new(|| a.clone().select(0, rows.clone()))),
        ("sum", Box::new(|| a.clone().sum_dim(1))),
        ("cast", Box::new(|| a.clone().cast(burn::tensor::DType::BF16))),
    ];
    // The first call also allocates for the process. Run it without the account, in case this test runs first.
    ops.iter().for_each(|(_, op)| drop(op()));
    let account = Account::new();
    let _on_it = account.enter();
    for (name, op) in ops {
        let before = live();
        let result = op();
        let bytes = result.shape().num_elements() * result.dtype().size();
        let grown = live() - before;
        assert!((bytes..bytes + 4096).contains(&grown), "{name}: {grown} for a result of {bytes}");
        drop(result);
        assert!(live() < before + 4096, "{name}: {} of {bytes} remain", live() - before);
    }
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
}

/// Trains a model with `layers` layers for `steps` steps. Returns the peak on the thread's account, and the most that a
/// pass took in addition to what was there before it.
fn train(layers: usize, steps: usize) -> (usize, usize) {
    const WIDTH: usize = 128;
    let device = Device::flex().autodiff();
    let mut model =
        Model { layers: (0..layers).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect() };
    let mut optimizer = AdamWConfig::new().init();
    let mut beyond = 0;
    for _ in 0..steps {
        let pass = Beyond::begin(&device);
        let x = Tensor::<2>::ones([512, WIDTH], &device);
        let y = model.layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
        let grads = y.powi_scalar(2).mean().backward();
        beyond = pass.end(&device).activations.max(beyond);
        let grads = GradientsParams::from_grads(grads, &model);
        model = optimizer.step(1e-3, model, grads);
    }
    assert!(in_use(&device).unwrap() >= layers * WIDTH * WIDTH * 4 * 3, "weights and two moments");
    (Usage::of(&device).unwrap().peak, beyond)
}

#[test]
fn threads_that_train_at_once_are_measured_as_if_each_were_alone() {
    // The first run of a process also allocates for the process, on the current account.
    train(2, 1);
    let sizes = [2, 4, 6, 10];
    let on_account = |layers: usize, together: Option<Arc<Barrier>>| {
        thread::spawn(move || {
            let account = Account::new();
            let _on_it = account.enter();
            if let Some(barrier) = together {
                barrier.wait();
            }
            let measured = train(layers, 5);
            assert_eq!(Usage::of_process(), account.usage());
            measured
        })
    };
    let alone = sizes.map(|layers| on_account(layers, None).join().unwrap());
    let barrier = Arc::new(Barrier::new(sizes.len()));
    let threads = sizes.map(|layers| on_account(layers, Some(barrier.clone())));
    let together = threads.map(|thread| thread.join().unwrap());
    for ((layers, alone), together) in sizes.into_iter().zip(alone).zip(together) {
        for (alone, together) in [(alone.0, together.0), (alone.1, together.1)] {
            let ratio = together as f64 / alone as f64;
            println!("{layers} layers: {together} beside others, {alone} alone");
            assert!(
                (0.97..1.03).contains(&ratio),
                "{layers} layers: {together} beside others, {alone} alone"
            );
        }
    }
    // Each account has its own bytes, not the sum of several.
    assert!(together[0].0 < together[3].0 / 2, "{together:?}");
}

/// The threads of matrix products and those that prepare batches allocate too; how much depends on their number.
#[test]
fn a_pass_without_an_account_is_that_of_its_own_thread() {
    let device = Device::flex().autodiff();
    let mine = || vec![1u8; 4 * MEGABYTE];
    let others = || thread::spawn(|| vec![1u8; 64 * MEGABYTE]).join().unwrap();
    let pass = Beyond::begin(&device);
    drop((mine(), others()));
    let kept = mine();
    let taken = pass.end(&device);
    // Besides what it takes to start a thread.
    let expected = 4 * MEGABYTE..5 * MEGABYTE;
    assert!(expected.contains(&taken.activations) && expected.contains(&taken.most), "{taken:?}");
    // The thread is on the process again.
    assert_eq!(Usage::of_process(), Usage::of_all_accounts());
    drop(kept);
}

/// Returns the bytes that the computation adds while its result lives, and its peak, both beyond those before.
fn taken<T>(run: impl FnOnce() -> T) -> [usize; 2] {
    let before = live();
    reset_peak();
    let result = run();
    let kept = live() - before;
    drop(result);
    [kept, Usage::of_process().unwrap().peak - before]
}

/// All logits would take 160 MB, and Burn's loss keeps several tensors of their size.
#[test]
fn the_loss_of_a_head_holds_one_chunk_of_its_logits() {
    let (rows, classes) = (1000, 40_000);
    let account = Account::new();
    let _on_it = account.enter();
    let device = Device::flex().autodiff();
    let hidden = Tensor::<2>::ones([rows, 4], &device).require_grad();
    let weight = Tensor::<2>::ones([classes, 4], &device).require_grad();
    let labels = vec![7; rows];
    let head = Head { weight: HeadWeight::Embedding(weight), bias: None, cap: None };
    let [_, peak] = taken(|| head_loss(hidden.clone(), &head, &labels, 0.1).backward());
    assert!(peak < 60 * MEGABYTE, "{peak}");
}

#[test]
fn a_norm_keeps_its_input_and_8_bytes_for_each_row() {
    let (rows, width) = (20_000, 8);
    let account = Account::new();
    let _on_it = account.enter();
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([rows, width], &device).require_grad();
    let scale = Tensor::<1>::ones([width], &device).require_grad();
    for (kind, statistics) in
        [(NormKind::Layer { epsilon: 1e-5 }, 8 * rows), (NormKind::Rms { epsilon: 1e-5 }, 4 * rows)]
    {
        let [kept, _] = taken(|| norm(x.clone(), scale.clone(), None, kind));
        let normed = 4 * rows * width;
        assert!((normed + statistics..normed + statistics + 40_000).contains(&kept), "{kind:?}: {kept}");
    }
}

/// The normed rows and the activation are computed again for the gradients of the matrices that multiply them.
#[test]
fn a_feed_forward_layer_keeps_its_input_and_what_it_activates() {
    let (rows, width, inner) = (4000, 64, 256);
    let account = Account::new();
    let _on_it = account.enter();
    let device = Device::flex().autodiff();
    settle_products(&device);
    let leaf = |shape| Tensor::<2>::ones(shape, &device).require_grad();
    let (x, scale) = (leaf([rows, width]), Tensor::<1>::ones([width], &device).require_grad());
    let (widen, narrow) = (leaf([width, inner]), leaf([inner, width]));
    let forward = |activate: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let normed = norm(x.clone(), scale.clone(), None, NormKind::Layer { epsilon: 1e-5 });
        linear(activate(linear(normed, widen.clone(), None)), narrow.clone(), None)
    };
    let expected = 4 * rows * (inner + width) + 8 * rows;
    for activate in [&(|hidden| gelu(hidden, Gelu::Exact)) as &dyn Fn(_) -> _, &|hidden: Tensor<2>| {
        gated(hidden.clone(), hidden, Gate::Silu)
    }] {
        let [kept, _] = taken(|| forward(activate));
        assert!((expected..expected + 100_000).contains(&kept), "{kept} bytes, expected {expected}");
    }
}

/// A sender's bytes in use do not depend on when the receiver frees a message.
#[test]
fn a_message_leaves_the_account_of_its_sender_at_once() {
    let (one, other) = (Account::new(), Account::new());
    let live = || [&one, &other].map(|account| account.usage().unwrap().live);
    let kept = {
        let _on_it = one.enter();
        vec![1u8; MEGABYTE]
    };
    let message = {
        let _on_it = one.enter();
        InTransit::new(vec![2u8; 3 * MEGABYTE], 1)
    };
    assert_eq!(live(), [MEGABYTE, 0]);
    assert_eq!(message.as_ref().len(), 3 * MEGABYTE);
    thread::spawn(move || drop(message)).join().unwrap();
    assert_eq!(live(), [MEGABYTE, 0]);

    // One that another thread sends is freed from the account that it was on.
    let message = {
        let _on_it = other.enter();
        let _own = vec![3u8; 2 * MEGABYTE];
        InTransit::new(kept, 1)
    };
    drop(message);
    assert_eq!(live(), [0, 0]);
    assert_eq!(other.usage().unwrap().peak, 2 * MEGABYTE);
}
