//! Tests of models whose parameters wait in a file.

use std::sync::Arc;

use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::Device;
use firebrick_strategies::{Parked, tied};

use super::*;
use crate::scratch::{NewValues, ScratchFile, Stored};

fn linear(device: &Device) -> Linear {
    LinearConfig::new(3, 2).init(device)
}

fn values<const D: usize>(param: &Param<Tensor<D>>) -> Vec<f32> {
    param.base().into_data().try_to_vec().unwrap()
}

/// Parks all parameters of a model.
fn parked<M: Module>(model: M) -> (Arc<ScratchFile>, Arc<ParkedParams>, M) {
    let folder = tempfile::tempdir().unwrap();
    let file = ScratchFile::create(folder.path(), 0).unwrap();
    let (parked, model) = ParkedParams::park(&file, model, |_| true).unwrap();
    (file, parked, model)
}

fn read_bytes(file: &ScratchFile) -> u64 {
    file.moved()[0].0
}

#[test]
fn a_parameter_that_waits_is_what_it_was_wherever_it_is_read() {
    let device = Device::flex().autodiff();
    let (first, frozen) = (linear(&device), linear(&device).no_grad());
    let expected = [values(&first.weight), values(&frozen.weight)];
    let (file, parked, model) = parked(vec![first.clone(), first, frozen]);
    assert!(model.iter().all(|linear| !linear.weight.is_initialized()) && tied(&model));
    assert_eq!(read_bytes(&file), 0);
    assert_eq!(values(&model[1].weight), expected[0]);
    assert!(model[0].weight.is_initialized(), "it is read once for both places");
    assert_eq!(values(&model[2].weight), expected[1]);
    assert_eq!(read_bytes(&file), 2 * 4096);
    assert!(model[0].weight.is_require_grad() && !model[2].weight.is_require_grad());
    assert!(model[0].weight.val().device().is_autodiff());
    let model = parked.renewed(model, Values::Master, |_| true);
    assert!(model.iter().all(|linear| !linear.weight.is_initialized()) && tied(&model));
}

#[test]
fn nothing_is_read_of_an_outline_or_in_validation_mode() {
    let device = Device::flex().autodiff();
    let (file, parked, model) = parked(vec![linear(&device), linear(&device).no_grad()]);
    let outline = parked.outline(model.clone(), Values::Master, true);
    let weight = outline[0].weight.base();
    assert_eq!((weight.dims(), weight.is_require_grad()), ([3, 2], true));
    assert!(!outline[1].weight.base().is_require_grad());
    let valid = parked.valid(&model, Values::Master);
    assert!(!valid[0].weight.is_initialized() && !valid[0].weight.lazy_device().is_autodiff());
    assert_eq!(read_bytes(&file), 0);
    assert!(!valid[0].weight.val().is_require_grad());
    let train = valid.train();
    assert!(train[0].weight.is_require_grad() && !train[1].weight.is_require_grad());
    assert_eq!(values(&train[0].weight), values(&model[0].weight));
}

#[test]
fn what_is_set_for_a_parameter_survives() {
    let config = LinearConfig::new(3, 2).with_layout(LinearLayout::Col).with_bias(false);
    let model = config.init(&Device::flex().autodiff());
    let saved = |model: &Linear| model.weight.transform_for_save().val().into_data();
    let expected = saved(&model);
    let (_file, parked, mut model) = parked(model);
    for _ in 0..3 {
        assert_eq!(saved(&model), expected);
        let outline = parked.outline(model, Values::Master, true);
        model = parked.renewed(outline, Values::Master, |_| true);
    }
}

#[test]
fn an_update_leaves_the_values_that_something_may_still_read() {
    let (file, parked, model) = parked(linear(&Device::flex().autodiff()));
    let (id, before) = (model.weight.id, values(&model.weight));
    let model = parked.renewed(model, Values::Master, |_| true);
    let bytes = file.bytes();
    let put = |value: f32, replica: Option<Tensor<1>>| {
        let master = TensorData::new(vec![value; 6], [3, 2]);
        parked.put(vec![NewValues { id, master, replica }]).unwrap();
    };
    put(7.0, None);
    assert_eq!(file.bytes(), bytes + 4096);
    assert_eq!(values(&model.weight), before, "it was made before");
    let model = parked.renewed(model, Values::Master, |_| true);
    assert_eq!(values(&model.weight), [7.0; 6]);
    // The same tensor is not written twice, another is.
    let of = |value: f32| Some(Tensor::<1>::full([6], value, &Device::flex()));
    put(8.0, of(8.0));
    assert_eq!(parked.bytes(), 6 * 4 + 2 * 4);
    put(9.0, of(1.0));
    assert_eq!(parked.bytes(), 6 * 4 + 6 * 4 + 2 * 4);
    let replica = parked.renewed(model.clone(), Values::Replica, |_| true);
    let master = parked.renewed(model, Values::Master, |_| true);
    assert_eq!((values(&replica.weight), values(&master.weight)), (vec![1.0; 6], vec![9.0; 6]));
    let read = parked.begin_read(&[id]).wait().unwrap();
    assert_eq!(read[0].to_data(), Tensor::<1>::full([6], 1.0, &Device::flex()).to_data());
    assert!(Stored::read(&[&parked.stored(id, Values::Master).unwrap()]).is_ok());
}
