//! Groups: their parameters, and the update of each group.

use burn::module::{ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use super::super::{AdamW, Sgd};
use super::*;

#[derive(Module, Debug)]
struct Model {
    tokens: Embedding,
    blocks: Vec<Linear>,
    norm: LayerNorm,
    head: Linear,
}

fn model() -> Model {
    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(2, 2).init(&device);
    Model {
        tokens: EmbeddingConfig::new(3, 2).init(&device),
        blocks: vec![linear(), linear()],
        norm: LayerNormConfig::new(2).init(&device),
        head: linear(),
    }
}

/// Returns the learning rate factors and weight decays of a pattern's parameters.
fn settings(groups: &Groups, model: &Model, pattern: &str) -> Vec<(f64, f32)> {
    let groups = groups.resolve(model).unwrap();
    let of = |id| {
        let mut holding = groups.alike().iter().filter(|alike| alike.ids.contains(id));
        let found = holding.next().expect("each parameter is in a group");
        assert!(holding.next().is_none(), "and in one only");
        (found.lr_scale, found.weight_decay)
    };
    Paths::of(model).params_matching(pattern).unwrap().iter().map(of).collect()
}

#[test]
fn the_first_group_that_names_a_parameter_counts() {
    let model = model();
    let groups = Groups::new()
        .weight_decay(0.1)
        .with(Group::of(["blocks.1.weight", "norm"]).lr_scale(0.5).weight_decay(0.3))
        .with(Group::of(["blocks.*"]).lr_scale(2.0))
        .with(Group::of(["head"]).weight_decay(0.0));
    let of = |pattern| settings(&groups, &model, pattern);
    assert_eq!(of("blocks.1.weight"), [(0.5, 0.3)]);
    assert_eq!(of("blocks.1.bias"), [(2.0, 0.0)], "biases do not decay");
    assert_eq!(of("blocks.0"), [(2.0, 0.1), (2.0, 0.0)]);
    assert_eq!(of("norm"), [(0.5, 0.3); 2], "unless a group says so");
    assert_eq!(of("head"), [(1.0, 0.0); 2]);
    assert_eq!(of("tokens"), [(1.0, 0.1)]);
    assert_eq!(groups.resolve(&model).unwrap().alike().len(), 5, "what is alike is one group");
}

#[test]
fn layer_decay_and_groups_are_multiplied() {
    let model = model();
    let groups = Groups::new().layer_decay(0.5).with(Group::of(["head", "blocks.0.weight"]).lr_scale(3.0));
    let scale = |pattern| settings(&groups, &model, pattern)[0].0;
    let of = ["tokens", "blocks.0.weight", "blocks.0.bias", "blocks.1", "norm", "head"].map(scale);
    assert_eq!(of, [0.125, 0.75, 0.25, 0.5, 1.0, 3.0]);
}

#[test]
fn what_does_not_fit_is_told() {
    let model = model();
    let refused = |groups: Groups| groups.resolve(&model).unwrap_err();
    let error = refused(Groups::new().with(Group::of(["head"])).with(Group::of(["token.weight"])));
    assert!(matches!(&error, GroupsError::Path { group: 1, .. }), "{error}");
    assert!(error.to_string().contains("the nearest are `tokens.weight`"), "{error}");
    let hidden = refused(Groups::new().with(Group::of(["*"])).with(Group::of(["head", "norm"])));
    assert_eq!(hidden, GroupsError::Hidden { group: 1, paths: "`head`, `norm`".into() });
    let none = refused(Groups::new().with(Group::of([] as [&str; 0])));
    assert_eq!(none, GroupsError::NoPaths { group: 0 });
    for (group, setting) in [
        (Group::of(["head"]).lr_scale(-1.0), "lr_scale"),
        (Group::of(["head"]).lr_scale(f64::INFINITY), "lr_scale"),
        (Group::of(["head"]).weight_decay(f32::NAN), "weight_decay"),
    ] {
        let error = refused(Groups::new().with(group));
        assert!(matches!(error, GroupsError::Value { group: 0, setting: at, .. } if at == setting));
    }
    for decay in [0.0, 1.5, f64::NAN] {
        assert!(matches!(refused(Groups::new().layer_decay(decay)), GroupsError::LayerDecay { .. }));
    }
    let flat = Groups::new().layer_decay(0.9).resolve(&model.head).unwrap_err();
    assert_eq!(flat, GroupsError::NoBlocks);
}

/// Returns all values of the model's parameters, and a gradient of 1 for each.
fn flat(model: &Model) -> (HashMap<ParamId, Vec<f32>>, GradientsParams) {
    struct Values(HashMap<ParamId, Vec<f32>>, GradientsParams);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val().inner();
            self.1.register(param.id, value.ones_like());
            self.0.insert(param.id, value.into_data().iter().collect());
        }
    }
    let mut values = Values(HashMap::new(), GradientsParams::new());
    model.visit(&mut values);
    (values.0, values.1)
}

/// θ ← θ - ηs(1 + λθ), whatever the learning rate of the update.
#[test]
fn an_update_is_at_the_rate_and_decay_of_the_group() {
    let mut model = model();
    let groups = Groups::new()
        .weight_decay(0.5)
        .layer_decay(0.25)
        .with(Group::of(["norm"]).weight_decay(2.0))
        .with(Group::of(["head"]).lr_scale(0.0));
    let mut optimizer = groups.init(&model, Sgd::new(), Sgd::weight_decay).unwrap();
    let expected = [
        ("tokens.weight", 1.0 / 64.0, 0.5),
        ("blocks.0.weight", 1.0 / 16.0, 0.5),
        ("blocks.0.bias", 1.0 / 16.0, 0.0),
        ("blocks.1.weight", 0.25, 0.5),
        ("blocks.1.bias", 0.25, 0.0),
        ("norm.gamma", 1.0, 2.0),
        ("norm.beta", 1.0, 2.0),
        ("head.weight", 0.0, 0.5),
        ("head.bias", 0.0, 0.0),
    ];
    for rate in [0.5, 0.125] {
        let (before, grads) = flat(&model);
        model = optimizer.step(rate, model, grads);
        let (after, _) = flat(&model);
        let paths = Paths::of(&model);
        assert_eq!(paths.places().len(), expected.len());
        for (place, (path, scale, decay)) in paths.places().iter().zip(expected) {
            assert_eq!(place.path, path);
            for (after, before) in after[&place.id].iter().zip(&before[&place.id]) {
                let by_hand = f64::from(*before) - rate * scale * (1.0 + decay * f64::from(*before));
                assert!((f64::from(*after) - by_hand).abs() < 1e-6, "{path}: {after} {by_hand}");
            }
        }
    }
}

/// An optimizer with groups restores its states, each parameter in its group.
#[test]
fn states_are_those_of_the_optimizer_without_groups() {
    let groups = Groups::new().layer_decay(0.5).with(Group::of(["head"]).lr_scale(3.0));
    let start = model();
    let optimizer = || groups.init(&start, AdamW::new(), AdamW::weight_decay).unwrap();
    let mut grouped = optimizer();
    let mut alone = AdamW::new().init().unwrap();
    let (_, grads) = flat(&start);
    let once = grouped.step(0.1, start.clone(), grads);
    alone.step(0.1, start.clone(), flat(&start).1);
    let step = |mut optimizer: ModelOptimizer| flat(&optimizer.step(0.1, once.clone(), flat(&once).1)).0;
    let expected = step(grouped.clone());
    for states in [grouped, alone].map(|optimizer| optimizer.states(None).unwrap()) {
        let mut again = optimizer();
        again.load(states, &Device::flex()).unwrap();
        assert_eq!(step(again), expected, "the same moments");
    }
}
