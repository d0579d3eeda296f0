//! Device, ranks and weights for tests.

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use firebrick_strategies::{Communicator, ParamMap, World, map_params, relift};
use serde_json::{Map, Value};

use crate::pretrained::HubConfig;

/// Returns the device that `BURN_DEVICE` names, as in the program; the CPU by default.
pub fn device() -> Device {
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into());
    firebrick::device::find(&name).unwrap_or_else(|error| panic!("BURN_DEVICE: {error}")).0
}

/// Runs `rank` on each of several ranks, a thread each, and returns their results.
pub fn on_ranks<T: Send>(ranks: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = World::threads(ranks).join().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|world| scope.spawn(|| rank(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the model with the same weights in every run, of about the sizes of its own. Burn draws from a generator that
/// all tests share, so that a sum could be near a tolerance in one run and not in another.
pub fn fixed<M: Module>(model: &M) -> M {
    struct Fixed(u64);
    impl ParamMap for Fixed {
        fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
            let numbers: Vec<f32> = value.clone().inner().into_data().iter().collect();
            let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
            let squares = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f32>();
            let deviation = (squares / numbers.len() as f32).sqrt();
            if deviation < 1e-6 {
                return value; // ones or zeros
            }
            let most = deviation.log2().round().exp2() * 3f32.sqrt();
            let mut number = || {
                self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0) * most
            };
            let drawn: Vec<f32> = numbers.iter().map(|_| number()).collect();
            let drawn = Tensor::from_data(TensorData::new(drawn, value.dims()), &value.device().inner());
            relift(drawn, &value)
        }
    }
    map_params(model.clone(), &mut Fixed(1))
}

/// The fields of transformers' class of a `model_type` with their defaults, in each version of
/// `tests/golden/config_defaults.py`.
pub fn defaults_of_class(model_type: &str) -> Vec<(String, String, Value)> {
    let versions: Map<String, Value> =
        serde_json::from_str(include_str!("../../tests/golden/config_defaults.json")).unwrap();
    assert_eq!(versions.len(), 2);
    let mut all = Vec::new();
    for (version, classes) in versions {
        let Value::Object(fields) = &classes[model_type] else { panic!("{version} has no {model_type}") };
        assert!(fields.len() > 10, "{version} {model_type}");
        all.extend(fields.iter().map(|(field, value)| (version.clone(), field.clone(), value.clone())));
    }
    all
}

/// Checks that a configuration of these fields means the same as one that also writes out a default of the class in
/// transformers, for each of them except `other` ones.
pub fn has_defaults_of_class<C: HubConfig>(
    model_type: &str,
    fields: &Value,
    other: &[&str],
    meaning: impl Fn(&C) -> String,
) {
    let read = |field: Option<(&str, &Value)>| {
        let mut all = fields.clone();
        all["model_type"] = model_type.into();
        if let Some((field, value)) = field {
            all[field] = value.clone();
        }
        meaning(
            &serde_json::from_value(all).unwrap_or_else(|error| panic!("{model_type} {field:?}: {error}")),
        )
    };
    let absent = read(None);
    for (version, field, value) in defaults_of_class(model_type) {
        if fields.get(&field).is_none() && !other.contains(&&*field) {
            let written = read(Some((field.as_str(), &value)));
            assert_eq!(absent, written, "{model_type}, `{field}` of transformers {version}: {value}");
        }
    }
}
