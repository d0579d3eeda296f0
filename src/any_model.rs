//! A model without its type.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;

use burn::module::{Devices, Flag, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor};
use firebrick_strategies::{Pass, TensorPlan};

use crate::any_batch::AnyBatch;
use crate::{Evaluation, Loss, Objective, Score};

/// Any model, behind a pointer.
///
/// Everything that trains a model is generic over it and compiled again for each model. A program that trains one of
/// many models, such as `firebrick`, trains an `AnyModel`: the trainer is compiled once, and a list of strategies that
/// is read from a file is a list for one type of model.
///
/// It is the same model: the parameters have the same paths, ids and values, and each call reaches the model itself.
///
/// # Panics
///
/// Its loss and its evaluation panic if they are given batches of another type than it was made for, and its visits and
/// maps if a parameter has more than 10 axes.
///
/// ```
/// # use burn::tensor::Device;
/// # use firebrick::*;
/// # use firebrick::datasets::{TokenBatch, Windows};
/// # use firebrick::optim::AdamW;
/// # use firebrick_models::{Gpt, GptConfig};
/// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
/// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// # let model = config.init(7, 8, &Device::flex().autodiff());
/// let model = AnyModel::new::<TokenBatch>(model);
/// let trained = Trainer::new().steps(2).fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
/// let model: Gpt = trained.model.into_inner().unwrap();
/// # Ok::<(), TrainError>(())
/// ```
pub struct AnyModel(Box<dyn Erased>);

impl AnyModel {
    /// Erases the type of a model that learns from batches of type `B`.
    pub fn new<B: 'static>(model: impl Objective<B> + 'static) -> Self {
        Self(Box::new(TypedModel(model, PhantomData)))
    }

    /// See [`Objective::tensor_plan`].
    pub fn tensor_plan(&self) -> TensorPlan {
        self.0.tensor_plan()
    }

    /// See [`Objective::scores`].
    pub fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.0.scores(counts)
    }

    /// Returns the model, or `None` if it is of another type than `M`.
    pub fn downcast_ref<M: 'static>(&self) -> Option<&M> {
        self.0.model().downcast_ref()
    }

    /// Returns the model, or `None` if it is of another type than `M`.
    pub fn into_inner<M: 'static>(self) -> Option<M> {
        self.0.into_model().downcast().ok().map(|model| *model)
    }
}

/// A model and the type of its batches.
struct TypedModel<M, B>(M, PhantomData<fn(B)>);

/// [`Module`] and [`Objective`] for a trait object.
trait Erased: Send {
    fn boxed(&self) -> Box<dyn Erased>;
    fn debug(&self) -> &dyn Debug;
    fn model(&self) -> &dyn Any;
    fn into_model(self: Box<Self>) -> Box<dyn Any>;
    fn collect_devices(&self, devices: Devices) -> Devices;
    fn fork(self: Box<Self>, device: &Device) -> Box<dyn Erased>;
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Erased>;
    fn train(self: Box<Self>) -> Box<dyn Erased>;
    fn valid(&self) -> Box<dyn Erased>;
    fn materialize(self: Box<Self>) -> Box<dyn Erased>;
    fn visit(&self, visitor: &mut dyn AnyVisitor);
    fn map(self: Box<Self>, mapper: &mut dyn AnyMapper) -> Box<dyn Erased>;
    fn loss(&self, batch: Box<dyn Any>, pass: &Pass) -> Loss;
    fn evaluate(&self, batch: Box<dyn Any>, pass: &Pass) -> Evaluation;
    fn scores(&self, counts: &[f64]) -> Vec<Score>;
    fn tensor_plan(&self) -> TensorPlan;
    fn reference(&self, batch: Box<dyn Any>, pass: &Pass) -> Option<Tensor<1>>;
}

impl<M: Objective<B> + 'static, B: 'static> TypedModel<M, B> {
    fn erased(model: M) -> Box<dyn Erased> {
        Box::new(Self(model, PhantomData))
    }

    fn batch(batch: Box<dyn Any>) -> B {
        let batch = batch.downcast::<AnyBatch>().map_or_else(|batch| batch, |any| any.into_any());
        *batch.downcast().unwrap_or_else(|_| {
            panic!("the model learns from batches of type {}: give it those", std::any::type_name::<B>())
        })
    }
}

impl<M: Objective<B> + 'static, B: 'static> Erased for TypedModel<M, B> {
    fn boxed(&self) -> Box<dyn Erased> {
        Self::erased(self.0.clone())
    }

    fn debug(&self) -> &dyn Debug {
        &self.0
    }

    fn model(&self) -> &dyn Any {
        &self.0
    }

    fn into_model(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.0)
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }

    fn fork(self: Box<Self>, device: &Device) -> Box<dyn Erased> {
        Self::erased(self.0.fork(device))
    }

    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn Erased> {
        Self::erased(self.0.to_device(device))
    }

    fn train(self: Box<Self>) -> Box<dyn Erased> {
        Self::erased(self.0.train())
    }

    fn valid(&self) -> Box<dyn Erased> {
        Self::erased(self.0.valid())
    }

    fn materialize(self: Box<Self>) -> Box<dyn Erased> {
        Self::erased(self.0.materialize())
    }

    fn visit(&self, visitor: &mut dyn AnyVisitor) {
        self.0.visit(&mut Visiting(visitor));
    }

    fn map(self: Box<Self>, mapper: &mut dyn AnyMapper) -> Box<dyn Erased> {
        Self::erased(self.0.map(&mut Mapping(mapper)))
    }

    fn loss(&self, batch: Box<dyn Any>, pass: &Pass) -> Loss {
        self.0.loss(Self::batch(batch), pass)
    }

    fn evaluate(&self, batch: Box<dyn Any>, pass: &Pass) -> Evaluation {
        self.0.evaluate(Self::batch(batch), pass)
    }

    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.0.scores(counts)
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.0.tensor_plan()
    }

    fn reference(&self, batch: Box<dyn Any>, pass: &Pass) -> Option<Tensor<1>> {
        self.0.reference(Self::batch(batch), pass)
    }
}

impl Clone for AnyModel {
    fn clone(&self) -> Self {
        Self(self.0.boxed())
    }
}

/// Prints the model itself.
impl Debug for AnyModel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.debug().fmt(f)
    }
}

impl Module for AnyModel {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self(self.0.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }

    fn train(self) -> Self {
        Self(self.0.train())
    }

    fn valid(&self) -> Self {
        Self(self.0.valid())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(visitor);
    }

    fn map<V: ModuleMapper>(self, mapper: &mut V) -> Self {
        Self(self.0.map(mapper))
    }
}

impl<B: 'static> Objective<B> for AnyModel {
    fn loss(&self, batch: B, pass: &Pass) -> Loss {
        self.0.loss(Box::new(batch), pass)
    }

    fn evaluate(&self, batch: B, pass: &Pass) -> Evaluation {
        self.0.evaluate(Box::new(batch), pass)
    }

    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.0.scores(counts)
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.0.tensor_plan()
    }

    fn reference(&self, batch: B, pass: &Pass) -> Option<Tensor<1>> {
        self.0.reference(Box::new(batch), pass)
    }
}

/// A visitor for a trait object: each parameter comes with the number of its axes.
trait AnyVisitor {
    fn float(&mut self, axes: usize, param: &dyn Any);
    fn int(&mut self, axes: usize, param: &dyn Any);
    fn bool(&mut self, axes: usize, param: &dyn Any);
    fn flag(&mut self, flag: &Param<Flag>);
    fn enter(&mut self, name: &str, container_type: &str);
    fn exit(&mut self, name: &str, container_type: &str);
}

/// A mapper for a trait object: each parameter comes with the number of its axes.
trait AnyMapper {
    fn float(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any>;
    fn int(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any>;
    fn bool(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any>;
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag>;
    fn enter(&mut self, name: &str, container_type: &str);
    fn exit(&mut self, name: &str, container_type: &str);
}

/// Evaluates an expression in which `$axes` is a constant: the number of axes of a parameter.
macro_rules! for_axes {
    ($given:expr, $axes:ident => $does:expr) => {
        for_axes!($given, $axes => $does, 1 2 3 4 5 6 7 8 9 10)
    };
    ($given:expr, $axes:ident => $does:expr, $($number:literal)*) => {
        match $given {
            $($number => {
                const $axes: usize = $number;
                $does
            })*
            axes => panic!("a parameter has {axes} axes, more than 10"),
        }
    };
}

/// What a parameter of this type is erased from.
fn of<T: 'static>(param: &dyn Any) -> &T {
    param.downcast_ref().expect("a parameter has the type that its number of axes says")
}

/// The value of a parameter of this type.
fn taken<T: 'static>(param: Box<dyn Any>) -> T {
    *param.downcast().expect("a parameter has the type that its number of axes says")
}

impl<V: ModuleVisitor> AnyVisitor for V {
    fn float(&mut self, axes: usize, param: &dyn Any) {
        for_axes!(axes, D => self.visit_float(of::<Param<Tensor<D>>>(param)));
    }

    fn int(&mut self, axes: usize, param: &dyn Any) {
        for_axes!(axes, D => self.visit_int(of::<Param<Tensor<D, Int>>>(param)));
    }

    fn bool(&mut self, axes: usize, param: &dyn Any) {
        for_axes!(axes, D => self.visit_bool(of::<Param<Tensor<D, Bool>>>(param)));
    }

    fn flag(&mut self, flag: &Param<Flag>) {
        self.visit_flag(flag);
    }

    fn enter(&mut self, name: &str, container_type: &str) {
        self.enter_module(name, container_type);
    }

    fn exit(&mut self, name: &str, container_type: &str) {
        self.exit_module(name, container_type);
    }
}

impl<V: ModuleMapper> AnyMapper for V {
    fn float(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any> {
        for_axes!(axes, D => Box::new(self.map_float(taken::<Param<Tensor<D>>>(param))))
    }

    fn int(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any> {
        for_axes!(axes, D => Box::new(self.map_int(taken::<Param<Tensor<D, Int>>>(param))))
    }

    fn bool(&mut self, axes: usize, param: Box<dyn Any>) -> Box<dyn Any> {
        for_axes!(axes, D => Box::new(self.map_bool(taken::<Param<Tensor<D, Bool>>>(param))))
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.map_flag(flag)
    }

    fn enter(&mut self, name: &str, container_type: &str) {
        self.enter_module(name, container_type);
    }

    fn exit(&mut self, name: &str, container_type: &str) {
        self.exit_module(name, container_type);
    }
}

/// Lends a visitor's trait object to a module.
struct Visiting<'a>(&'a mut dyn AnyVisitor);

impl ModuleVisitor for Visiting<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.float(D, param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.int(D, param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.bool(D, param);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.flag(flag);
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }
}

/// Lends a mapper's trait object to a module.
struct Mapping<'a>(&'a mut dyn AnyMapper);

impl ModuleMapper for Mapping<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        taken(self.0.float(D, Box::new(param)))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        taken(self.0.int(D, Box::new(param)))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        taken(self.0.bool(D, Box::new(param)))
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.flag(flag)
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }
}
