//! Tests of training, under every strategy and number of ranks. They share one program, because each program links
//! Burn.

#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod conformance;
mod decisions;
mod divergence;
mod dropout;
mod ema;
mod equivalence;
mod examples;
mod freeze;
mod from_host;
mod golden;
mod golden_optimizers;
mod groups;
mod in_place;
mod label_smoothing;
mod lora;
mod lora_variants;
mod many_ranks;
mod mixed_precision;
mod observers;
mod of_burn;
mod optimizers;
mod own_strategies;
mod peft;
mod preference;
mod pretrained;
mod pretrained_folders;
mod pretrained_sharded;
mod quantize;
mod rank_bytes;
mod ranks;
mod ranks_end;
mod reads;
mod replicas;
mod reshard;
mod resume;
mod rounds;
mod save_failures;
mod schedules;
mod scores;
mod tokens_on_ranks;
mod windows;
