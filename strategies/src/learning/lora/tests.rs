use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::*;
use crate::{Amp, Composed, Composition, Freeze, Keep, SavedStates, Trained, testing, trained};

const RATE: f64 = 0.5;

fn device() -> Device {
    testing::device().autodiff()
}

fn adapt<M: Module + 'static>(lora: &impl Composition<M>, model: M, seed: u64) -> (M, Adaptation) {
    let mut adaptation = Adaptation::seeded(seed);
    (lora.adapt(model, &mut adaptation).unwrap(), adaptation)
}

fn linear() -> Linear {
    LinearConfig::new(3, 2).init(&device())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter().collect()
}

/// Multiplies `[rows, inner]` by `[inner, columns]`.
fn product(a: &[f64], b: &[f64], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let of = |row: usize, column: usize| -> f64 {
        (0..inner).map(|i| a[row * inner + i] * b[i * columns + column]).sum()
    };
    (0..rows * columns).map(|at| of(at / columns, at % columns)).collect()
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transposed(a: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|at| a[at % rows * columns + at / rows]).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        // Burn's weights are drawn, and f32 has seven digits.
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found} {expected}");
    }
}

#[test]
fn two_updates_follow_the_equation() {
    follows_the_equation(Lora::rank(2).alpha(3.0), 1.5);
}

#[test]
fn rank_stabilized_its_scale_is_that_of_the_root_of_the_rank() {
    follows_the_equation(Lora::rank(2).alpha(3.0).rank_stabilized(), 3.0 / 2f64.sqrt());
}

/// Two updates are those of factors of rank 2 with this scale.
fn follows_the_equation(lora: Lora, scale: f64) {
    let (from, to, rank) = (3, 2, 2);
    let (mut model, adaptation) = adapt(&lora.on(["weight"]), linear(), 1);
    let given = values(model.weight.base());
    let factors = |model: &Linear| {
        let adapter = model.weight.reparameterization::<LoraFactors>().unwrap();
        (values(adapter.a.val()), values(adapter.b.val()))
    };
    let (mut a, mut b) = factors(&model);
    assert_eq!(b, [0.0; 4]);
    let x = Tensor::<2>::from_data([[1.0, -2.0, 0.5], [0.25, 1.0, 3.0]], &device());
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..2 {
        // For y = x·W, summed with weights w: dW = xᵀ·w; for W + s·A·B: dA = s·dW·Bᵀ, dB = s·Aᵀ·dW.
        let weights = Tensor::<2>::from_data([[1.0, 2.0], [-1.0, 0.5]], &device());
        let of_matrix =
            product(&transposed(&values(x.clone()), [2, from]), &values(weights.clone()), [from, 2, to]);
        let of_a = product(&of_matrix, &transposed(&b, [rank, to]), [from, to, rank]);
        let of_b = product(&transposed(&a, [from, rank]), &of_matrix, [rank, from, to]);
        let step = |values: &mut Vec<f64>, grads: Vec<f64>| {
            values.iter_mut().zip(grads).for_each(|(value, grad)| *value -= RATE * scale * grad);
        };
        let loss = (model.forward(x.clone()) * weights).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, grads);
        step(&mut a, of_a);
        step(&mut b, of_b);
        let found = factors(&model);
        close(&found.0, &a);
        close(&found.1, &b);
    }
    assert_eq!(values(model.weight.base()), given, "the matrix stays");
    // The returned model has W + s·A·B.
    let delta = product(&a, &b, [from, rank, to]);
    let expected: Vec<_> = given.iter().zip(delta).map(|(given, delta)| given + scale * delta).collect();
    let read = values(model.weight.val());
    let merged = adaptation.give_back(model.valid());
    assert!(merged.weight.reparameterization::<LoraFactors>().is_none());
    close(&values(merged.weight.val()), &expected);
    close(&values(merged.weight.val()), &read);
    assert_eq!(trained(&merged.train()).len(), 2, "both are trained, as they were");
}

#[test]
fn two_updates_of_magnitudes_follow_the_equation() {
    let (from, to, rank, scale) = (3, 2, 2, 1.5);
    let (mut model, adaptation) = adapt(&Lora::rank(2).alpha(3.0).dora().on(["weight"]), linear(), 1);
    let given = values(model.weight.base());
    let parts = |model: &Linear| {
        let factors = model.weight.reparameterization::<LoraFactors>().unwrap();
        let magnitude = factors.magnitude.as_ref().unwrap();
        [values(factors.a.val()), values(factors.b.val()), values(magnitude.val())]
    };
    let [mut a, mut b, mut m] = parts(&model);
    // The sum S = W + s·A·B, and the norms of its columns.
    let sum = |a: &[f64], b: &[f64]| {
        let delta = product(a, b, [from, rank, to]);
        let sum: Vec<f64> = given.iter().zip(delta).map(|(given, delta)| given + scale * delta).collect();
        let norm = |column: usize| (0..from).map(|row| sum[row * to + column].powi(2)).sum::<f64>().sqrt();
        let norms: Vec<f64> = (0..to).map(norm).collect();
        (sum, norms)
    };
    close(&m, &sum(&a, &b).1);
    let x = Tensor::<2>::from_data([[1.0, -2.0, 0.5], [0.25, 1.0, 3.0]], &device());
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..2 {
        // For V = m·S/‖S‖ with a constant norm: dS = m/‖S‖·dV, dm = Σ dV·S/‖S‖ over the rows.
        let weights = Tensor::<2>::from_data([[1.0, 2.0], [-1.0, 0.5]], &device());
        let of_read =
            product(&transposed(&values(x.clone()), [2, from]), &values(weights.clone()), [from, 2, to]);
        let (s, norms) = sum(&a, &b);
        let each =
            |of: &dyn Fn(usize, usize) -> f64| (0..from * to).map(|at| of(at, at % to)).collect::<Vec<_>>();
        let of_sum = each(&|at, column| of_read[at] * m[column] / norms[column]);
        let of_m = each(&|at, column| of_read[at] * s[at] / norms[column]);
        let of_m: Vec<f64> = (0..to).map(|column| of_m.iter().skip(column).step_by(to).sum()).collect();
        let of_a = product(&of_sum, &transposed(&b, [rank, to]), [from, to, rank]);
        let of_b = product(&transposed(&a, [from, rank]), &of_sum, [rank, from, to]);
        let step = |values: &mut Vec<f64>, grads: Vec<f64>, scale: f64| {
            values.iter_mut().zip(grads).for_each(|(value, grad)| *value -= RATE * scale * grad);
        };
        let loss = (model.forward(x.clone()) * weights).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, grads);
        step(&mut a, of_a, scale);
        step(&mut b, of_b, scale);
        step(&mut m, of_m, 1.0);
        let found = parts(&model);
        [&a, &b, &m].iter().zip(found).for_each(|(expected, found)| close(&found, expected));
    }
    let (s, norms) = sum(&a, &b);
    let expected: Vec<f64> = s.iter().enumerate().map(|(at, s)| m[at % to] * s / norms[at % to]).collect();
    let merged = adaptation.give_back(model.valid());
    close(&values(merged.weight.val()), &expected);
}

#[test]
fn magnitudes_start_as_the_norms_also_of_zeros_and_of_halves() {
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        let mut model = linear();
        let weight = Tensor::<2>::from_data([[3.0, 0.0], [4.0, 0.0], [0.0, 0.0]], &device());
        model.weight = burn::module::Param::from_tensor(weight.cast(dtype));
        let (adapted, _) = adapt(&Lora::rank(2).dora().on(["weight"]), model.clone(), 1);
        let factors = adapted.weight.reparameterization::<LoraFactors>().unwrap();
        let magnitude = factors.magnitude.as_ref().unwrap().val();
        assert_eq!(FloatDType::from(magnitude.dtype()), dtype);
        assert_eq!(values(magnitude)[0], 5.0);
        assert_eq!(values(adapted.weight.val()), values(model.weight.val()), "and no NaN");
        let grads = adapted.weight.val().sum().backward();
        let grad = factors.b.val().grad(&grads).unwrap();
        assert!(values(grad).iter().all(|grad| grad.is_finite()));
    }
}

#[test]
fn it_starts_as_the_model_was_and_trains_the_factors_and_what_is_named_too() {
    let model = vec![linear(), linear()];
    let lora = Lora::rank(4).on(["0.weight"]).also(["1.bias"]);
    let (adapted, _) = adapt(&lora, model.clone(), 1);
    let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0]], &device());
    assert_eq!(values(adapted[0].forward(x.clone())), values(model[0].forward(x)));
    let adapter = adapted[0].weight.reparameterization::<LoraFactors>().unwrap();
    let expected = [adapter.a.id, adapter.b.id, adapted[1].bias.as_ref().unwrap().id];
    assert_eq!(trained(&adapted).iter().map(|one| one.id).collect::<Vec<_>>(), expected);
    assert_eq!(trained(&model).len(), 4, "what was given is as it was");
    let paths = Paths::of(&adapted);
    let found: Vec<_> = paths.places().iter().map(|place| place.path.as_str()).collect();
    assert_eq!(found[..4], ["0.weight", "0.weight.lora.a", "0.weight.lora.b", "0.bias"]);
    let place = &paths.places()[1];
    assert_eq!((place.holder.as_str(), place.reparameterizes.as_deref()), ("Linear", Some("0.weight")));
    assert_eq!(paths.places()[3].reparameterizes, None);
}

#[test]
fn factors_are_drawn_from_the_seed_and_the_path_alone() {
    let of = |seed| {
        let (model, _) = adapt(&Lora::rank(2).on(["*weight"]), vec![linear(), linear()], seed);
        [0, 1].map(|i| values(model[i].weight.reparameterization::<LoraFactors>().unwrap().a.val()))
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let [first, second] = of(1);
    assert_ne!(first, second);
    assert!(first.iter().all(|x| x.abs() <= 1.0 / 3f64.sqrt()));
}

#[derive(Module, Debug)]
struct Tied {
    tokens: Embedding,
    head: Linear,
}

#[test]
fn a_tied_matrix_has_one_pair_of_factors() {
    let tokens = EmbeddingConfig::new(3, 2).init(&device());
    let mut head = LinearConfig::new(3, 2).with_bias(false).init(&device());
    head.weight = tokens.weight.clone();
    let (model, adaptation) = adapt(&Lora::rank(2).on(["head.weight"]), Tied { tokens, head }, 1);
    let ids = |adapter: &LoraFactors| (adapter.a.id, adapter.b.id);
    let [of_tokens, of_head] = [&model.tokens.weight, &model.head.weight]
        .map(|weight| ids(weight.reparameterization::<LoraFactors>().unwrap()));
    assert_eq!(of_tokens, of_head);
    assert_eq!(trained(&model).len(), 2);
    let merged = adaptation.give_back(model);
    assert_eq!(merged.tokens.weight.id, merged.head.weight.id);
}

#[derive(Module, Debug)]
struct Block {
    attention: MultiHeadAttention,
    output: Linear,
}

#[test]
fn by_default_it_adapts_the_projections_of_attention() {
    let attention = MultiHeadAttentionConfig::new(4, 2).init(&device());
    let model = vec![Block { attention, output: LinearConfig::new(4, 4).init(&device()) }];
    let (adapted, _) = adapt(&Lora::rank(2), model.clone(), 1);
    let paths = Paths::of(&adapted);
    let factors = paths.places().iter().filter(|place| place.path.ends_with("lora.a"));
    let found: Vec<_> = factors.map(|place| place.reparameterizes.clone().unwrap()).collect();
    let expected = ["query", "key", "value", "output"].map(|name| format!("0.attention.{name}.weight"));
    assert_eq!(found, expected, "and not the layer after it");
    // Burn's own layers read through the factors.
    let x = Tensor::<3>::ones([1, 2, 4], &device());
    let loss = adapted[0].attention.forward(MhaInput::self_attn(x)).context.sum();
    let grads = GradientsParams::from_grads(loss.backward(), &adapted);
    assert_eq!(grads.len(), 8);

    let error = Lora::rank(2).adapt(vec![linear()], &mut Adaptation::default()).unwrap_err().to_string();
    assert!(error.contains("no projection of attention") && error.contains("`0.weight`"), "{error}");
}

#[derive(Module, Debug)]
struct Labeler {
    tokens: Embedding,
    tied: Linear,
    blocks: Vec<Block>,
    pooler: Linear,
    classifier: Linear,
}

#[test]
fn all_linear_layers_are_adapted_but_embeddings_and_the_head() {
    let linear = || LinearConfig::new(4, 4).init(&device());
    let attention = MultiHeadAttentionConfig::new(4, 2).init(&device());
    let mut model = Labeler {
        tokens: EmbeddingConfig::new(4, 4).init(&device()),
        tied: linear(),
        blocks: vec![Block { attention, output: linear() }],
        pooler: linear(),
        classifier: linear(),
    };
    model.tied.weight = model.tokens.weight.clone();
    let (adapted, _) = adapt(&Lora::rank(2).on_all_linear(), model, 1);
    let paths = Paths::of(&adapted);
    let factors = paths.places().iter().filter(|place| place.path.ends_with("lora.a"));
    let found: Vec<_> = factors.map(|place| place.reparameterizes.clone().unwrap()).collect();
    let attention =
        ["query", "key", "value", "output"].map(|name| format!("blocks.0.attention.{name}.weight"));
    let others = ["blocks.0.output.weight", "pooler.weight"].map(String::from);
    assert_eq!(found, [attention.as_slice(), &others].concat());

    let alone = EmbeddingConfig::new(4, 4).init(&device());
    let error =
        Lora::rank(2).on_all_linear().adapt(alone, &mut Adaptation::default()).unwrap_err().to_string();
    assert!(error.contains("`targets`") && error.contains("without linear layers"), "{error}");
    let both = Lora::rank(2).on_all_linear().on(["weight"]);
    let error = both.adapt(self::linear(), &mut Adaptation::default()).unwrap_err().to_string();
    assert!(error.contains("`targets` must be left out where `paths` is given, found AllLinear"), "{error}");
}

#[test]
fn factors_have_the_dtype_of_what_they_are_added_to() {
    if !testing::has_bf16() {
        return;
    }
    let recipe = || Composed::new().with(Lora::rank(2).on(["weight"])).with(Amp::bf16());
    let (model, _) = adapt(&recipe(), linear(), 1);
    let mut stage = recipe().start(&mut Setup::new(&model, &device())).unwrap();
    let master = stage.init_master(model).unwrap();
    let replica = stage.publish(master.clone()).unwrap();
    let dtypes = |model: &Linear| {
        let adapter = model.weight.reparameterization::<LoraFactors>().unwrap();
        [
            model.weight.base().dtype(),
            adapter.a.val().dtype(),
            adapter.b.val().dtype(),
            model.weight.val().dtype(),
        ]
    };
    assert_eq!(dtypes(&master), [DType::F32; 4]);
    assert_eq!(dtypes(&replica), [DType::BF16; 4]);
    let kept = Amp::bf16().keep_f32(Keep::path("weight"));
    let replica = kept.start(&mut Setup::new(&master, &device())).unwrap().publish(master).unwrap();
    assert_eq!(dtypes(&replica), [DType::F32; 4]);
    let half =
        Amp::pure_bf16().start(&mut Setup::new(&linear(), &device())).unwrap().init_master(linear()).unwrap();
    assert_eq!(FloatDType::from(half.weight.val().dtype()), FloatDType::BF16);
    let (model, _) = adapt(&Lora::rank(2).on(["weight"]), half, 1);
    assert_eq!(dtypes(&model), [DType::BF16; 4]);
}

#[test]
fn what_is_frozen_before_is_adapted_and_what_is_frozen_after_is_not_trained() {
    let lora = || Lora::rank(2).on(["*weight"]);
    let ids =
        |model: &Vec<Linear>| trained(model).into_iter().map(|one: Trained| one.shape).collect::<Vec<_>>();
    let (before, _) =
        adapt(&Composed::new().with(Freeze::paths(["0"])).with(lora()), vec![linear(), linear()], 1);
    assert_eq!(ids(&before), [[3, 2], [2, 2], [3, 2], [2, 2]]);
    let (after, _) =
        adapt(&Composed::new().with(lora()).with(Freeze::paths(["0"])), vec![linear(), linear()], 1);
    assert_eq!(ids(&after), [[3, 2], [2, 2]]);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let error = |lora: Lora| lora.adapt(linear(), &mut Adaptation::default()).unwrap_err().to_string();
    assert!(error(Lora::rank(0)).contains("`rank` must be at least 1"));
    for dropout in [-0.1, 1.0, f64::NAN] {
        let found = error(Lora::rank(1).dropout(dropout));
        assert!(found.contains("`dropout` must be at least 0 and below 1"), "{found}");
    }
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(error(Lora::rank(1).alpha(alpha)).contains("`alpha` must be finite and above 0"));
    }
    assert!(error(Lora::rank(1).on(["wieght"])).contains("the nearest are `weight`"));
    assert!(error(Lora::rank(1).on(["weight"]).also(["baes"])).contains("`bias`"));
    let shape = error(Lora::rank(1).on(["bias"]));
    assert!(shape.contains("`bias`, which means parameters of other shapes"), "{shape}");

    let lora = || Lora::rank(1).on(["weight"]);
    let twice =
        Composed::new().with(lora()).with(lora()).adapt(linear(), &mut Adaptation::default()).unwrap_err();
    assert_eq!(twice, StrategyError::Twice("Lora"));
    let (adapted, _) = adapt(&lora(), linear(), 1);
    let again = lora().adapt(adapted, &mut Adaptation::default()).unwrap_err().to_string();
    assert!(again.contains("`weight` is read through an adapter already"), "{again}");
    let bare = lora().start(&mut Setup::new(&linear(), &device())).unwrap_err();
    assert_eq!(bare, StrategyError::NotAdapted("Lora"));
}

#[test]
fn another_scale_than_the_saved_one_is_refused() {
    let stage = |lora: Lora| {
        let (model, _) = adapt(&lora.clone().on(["weight"]), linear(), 1);
        lora.start(&mut Setup::new(&model, &device())).unwrap()
    };
    let states = stage(Lora::rank(2).alpha(4.0)).save();
    let restore = |lora: Lora| stage(lora).restore(&mut SavedStates::new(states.clone()));
    restore(Lora::rank(2).alpha(4.0)).unwrap();
    let error = restore(Lora::rank(2).alpha(8.0)).unwrap_err().to_string();
    assert!(error.contains("alpha 8 of rank 2, where it was 4 of 2"), "{error}");
    let error = restore(Lora::rank(2).alpha(4.0).rank_stabilized()).unwrap_err().to_string();
    assert!(error.contains("`rank_stabilized` must be false, as in the saved run, found true"), "{error}");
    let stabilized = || Lora::rank(2).alpha(4.0).rank_stabilized();
    let states = stage(stabilized()).save();
    stage(stabilized()).restore(&mut SavedStates::new(states.clone())).unwrap();
    let plain =
        stage(Lora::rank(2).alpha(4.0)).restore(&mut SavedStates::new(states)).unwrap_err().to_string();
    assert!(plain.contains("`rank_stabilized` must be true, as in the saved run, found false"), "{plain}");
}

#[test]
fn what_has_started_anew_is_trained_whole_unless_it_was_frozen() {
    let model = || vec![linear(), linear(), linear()];
    let lora = Lora::rank(2).on(["0.weight"]);
    let adapt = |strategy: &dyn Composition<Vec<Linear>>| {
        let mut adaptation = Adaptation::seeded(1).with_fresh(["1".to_string(), "2.bias".to_string()]);
        (strategy.adapt(model(), &mut adaptation).unwrap(), adaptation)
    };
    let (adapted, adaptation) = adapt(&lora);
    let learns =
        |linear: &Linear| [linear.weight.is_require_grad(), linear.bias.as_ref().unwrap().is_require_grad()];
    assert_eq!(adapted.iter().map(learns).collect::<Vec<_>>(), [[false, false], [true, true], [false, true]]);
    assert!(adaptation.is_whole(adapted[1].weight.id) && !adaptation.is_whole(adapted[0].weight.id));

    let (adapted, adaptation) = adapt(&Composed::new().with(Freeze::paths(["1.bias"])).with(lora));
    assert_eq!(learns(&adapted[1]), [true, false]);
    assert!(!adaptation.is_whole(adapted[1].bias.as_ref().unwrap().id));
}
