//! The names of the parts of a run's memory: plans, reports and errors show the same.

/// The parameters that the optimizer updates.
pub const MASTER: &str = "master";
/// The parameters that the forward pass reads, on top of the master.
pub const REPLICA: &str = "replica";
/// The averaged parameters.
pub const AVERAGED: &str = "averaged weights";
/// The gradients of parameters.
pub const GRADIENTS: &str = "gradients";
/// The state of the optimizer.
pub const OPTIMIZER: &str = "optimizer state";
/// What a forward and backward pass takes on top of all these, at most.
pub const ACTIVATIONS: &str = "activations";
/// What of these is offloaded to the host's memory.
pub const ON_HOST: &str = "on the host";
/// What of these is on a disk.
pub const ON_DISK: &str = "on the disk";
/// The most bytes on the device.
pub const PEAK: &str = "device, at the peak";
