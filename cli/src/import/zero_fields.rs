//! The rules for the fields of `zero_optimization`.

use super::rules::Becomes::{NoEffect, Omitted, Read, Refused};
use super::rules::{Rule, rule};

const OFF: &[&str] = &["false"];
const BUCKETS: &str = "what travels at once is one block, however large";
const DISKS: &str = "nothing is kept on disks";
const NONE_OFFLOADED: &str = "nothing is offloaded";
const COPIED: &str = "how memory is copied is up to the backend";
const BLOCKS: &str = "a block is gathered when it is needed, and the next one beside it";

/// The rules, in the order of lookup.
pub(super) static ZERO: &[Rule] = &[
    rule("zero_optimization.stage", Read("ranks share nothing")),
    rule(
        "zero_optimization.overlap_comm",
        NoEffect("stages 2 and 3 reduce each block in the backward pass, always"),
    ),
    rule(
        "zero_optimization.contiguous_gradients",
        NoEffect("each block's gradients are reduced and freed at once"),
    ),
    rule("zero_optimization.reduce_scatter", NoEffect("gradients are always reduced to shards")),
    rule("zero_optimization.reduce_bucket_size", NoEffect(BUCKETS)),
    rule("zero_optimization.allgather_partitions", NoEffect("shards are always gathered together")),
    rule("zero_optimization.allgather_bucket_size", NoEffect(BUCKETS)),
    rule("zero_optimization.use_multi_rank_bucket_allreduce", NoEffect(BUCKETS)),
    rule("zero_optimization.compute_grad_norm", NoEffect("the norm is always known, and logged")),
    rule("zero_optimization.load_from_fp32_weights", NoEffect("master weights are saved and loaded in f32")),
    rule("zero_optimization.elastic_checkpoint", NoEffect("a checkpoint goes on with any number of ranks")),
    rule("zero_optimization.sub_group_size", NoEffect("the update goes through memory once, in place")),
    rule("zero_optimization.round_robin_gradients", NoEffect("each rank copies its own shard")),
    rule("zero_optimization.parameter_alignment", NoEffect("each parameter is a tensor of its own")),
    rule(
        "zero_optimization.ignore_unused_parameters",
        NoEffect("a parameter without a gradient stays as it is"),
    ),
    rule("zero_optimization.legacy_stage1", NoEffect("there is one stage 1")),
    rule("zero_optimization.stage3_max_live_parameters", NoEffect(BLOCKS)),
    rule("zero_optimization.stage3_max_reuse_distance", NoEffect(BLOCKS)),
    rule("zero_optimization.stage3_prefetch_bucket_size", NoEffect(BLOCKS)),
    rule("zero_optimization.stage3_param_persistence_threshold", Read("it is for stage 3")),
    rule(
        "zero_optimization.stage3_model_persistence_threshold",
        NoEffect("`replicate_below` of `Zero` is for single parameters"),
    ),
    rule(
        "zero_optimization.stage3_module_granularity_threshold",
        NoEffect("`blocks` of `Zero` names what is gathered at once"),
    ),
    rule("zero_optimization.stage3_use_all_reduce_for_fetch_params", NoEffect(BLOCKS)),
    rule("zero_optimization.stage3_allgather_sequential", NoEffect(BLOCKS)),
    rule(
        "zero_optimization.stage3_partition_stream_chunk_size",
        NoEffect("a model is dealt parameter by parameter"),
    ),
    rule(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        NoEffect("model.safetensors is whole; `firebrick consolidate --dtype bf16` makes it smaller"),
    ),
    rule(
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        NoEffect("model.safetensors is whole; `firebrick consolidate --dtype f16` makes it smaller"),
    ),
    rule(
        "zero_optimization.memory_efficient_linear",
        NoEffect("a block's weights are gathered again for the backward pass"),
    ),
    rule("zero_optimization.override_module_apply", NoEffect("models are made whole, and dealt")),
    rule(
        "zero_optimization.pipeline_loading_checkpoint",
        NoEffect("each rank reads the rows that it is to hold"),
    ),
    rule("zero_optimization.log_trace_cache_warnings", NoEffect("there is no trace to go stale")),
    rule("zero_optimization.enable_sanity_checks", NoEffect("wrong orders of strategies are always refused")),
    rule("zero_optimization.cpu_offload", Read(NONE_OFFLOADED)),
    rule("zero_optimization.cpu_offload_param", Read(NONE_OFFLOADED)),
    rule("zero_optimization.cpu_offload_params", Read(NONE_OFFLOADED)),
    rule("zero_optimization.cpu_offload_use_pin_memory", NoEffect(COPIED)),
    rule("zero_optimization.offload_optimizer.device", Read(NONE_OFFLOADED)),
    rule("zero_optimization.offload_optimizer.ratio", Read(NONE_OFFLOADED)),
    rule("zero_optimization.offload_optimizer.nvme_path", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.pin_memory", NoEffect(COPIED)),
    rule("zero_optimization.offload_optimizer.pipeline_read", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.pipeline_write", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.pipeline", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.fast_init", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.convert_grad_on_cpu", NoEffect(COPIED)),
    rule("zero_optimization.offload_optimizer.super_offload", NoEffect(COPIED)),
    rule("zero_optimization.offload_optimizer.cpuadam_cores_perc", NoEffect(COPIED)),
    rule("zero_optimization.offload_optimizer.buffer_count", NoEffect(DISKS)),
    rule("zero_optimization.offload_optimizer.buffer_size", NoEffect(DISKS)),
    rule("zero_optimization.offload_param.device", Read(NONE_OFFLOADED)),
    rule("zero_optimization.offload_param.pin_memory", NoEffect(COPIED)),
    rule("zero_optimization.offload_param.buffer_count", NoEffect(DISKS)),
    rule("zero_optimization.offload_param.buffer_size", NoEffect(DISKS)),
    rule("zero_optimization.offload_param.max_in_cpu", NoEffect(DISKS)),
    rule("zero_optimization.offload_param.nvme_path", NoEffect(DISKS)),
    rule(
        "zero_optimization.zero_hpz_partition_size",
        Omitted(&["1"], "shards over all ranks: there is no second copy in each machine"),
    ),
    rule(
        "zero_optimization.zero_quantized_weights",
        Refused(OFF, "weights that travel as they are; `Amp` halves them"),
    ),
    rule("zero_optimization.zero_quantized_nontrainable_weights", Refused(OFF, "frozen weights as they are")),
    rule("zero_optimization.zero_quantized_gradients", Refused(OFF, "`Zero(sum_in: bf16)`")),
    rule("zero_optimization.zeropp_loco_param.*", Refused(&["{}"], "`Zero(sum_in: bf16)`")),
    rule("zero_optimization.mics_shard_size", Omitted(&["-1", "0"], "shards over all ranks")),
    rule("zero_optimization.mics_hierarchical_params_gather", NoEffect("shards are over all ranks")),
    rule(
        "zero_optimization.zenflow.*",
        Refused(&["{}"], "`Offload(optimizer)`, whose updates are never late"),
    ),
    rule(
        "zero_optimization.leaf_module.*",
        Omitted(&["{}", "[]"], "`Zero(blocks: [..])` names what is gathered at once"),
    ),
    rule("zero_optimization.save_muon_momentum_buffer_in_memory", NoEffect(DISKS)),
];
