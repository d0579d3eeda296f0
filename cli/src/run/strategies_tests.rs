//! Strategies in a run file: what they are read as, what they are written as, and what is out of range.

use firebrick_strategies::{
    Amp, Clip, Ema, Freeze, Keep, Lora, LossScale, Offload, Quantize, Recompute, Zero,
};

use super::*;
use crate::RunError;

fn run(sets: &[&str]) -> Result<Run, RunError> {
    Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), sets)
}

fn strategies(list: &str, sets: &[&str]) -> Vec<RunStrategy> {
    let list = format!("strategies={list}");
    let sets: Vec<&str> = [list.as_str()].into_iter().chain(sets.iter().copied()).collect();
    run(&sets).unwrap_or_else(|error| panic!("{list}: {error}")).strategies
}

fn error(list: &str) -> String {
    run(&[&format!("strategies={list}")]).unwrap_err().to_string()
}

#[test]
fn an_entry_is_the_recipe() {
    let scale = LossScale::dynamic(1024.0).interval(500).hysteresis(2).minimum(0.5);
    let keep = Keep::norms().and(Keep::path("blocks.0.*")).and(Keep::head()).and(Keep::embeddings());
    let amp = Amp::f16().evaluate_in(FloatDType::F32).scaled_by(scale).keep_f32(keep);
    let zero = Zero::stage(3).summing_in(FloatDType::BF16).replicate_below(9).blocks(["blocks.*"]);
    let lora = Lora::rank(8).alpha(16.0).on(["*.query.weight"]).also(["head"]);
    for (text, name, recipe) in [
        ("Amp(bf16)", "Amp", RunStrategy::new("Amp", Amp::bf16())),
        ("Amp( f16 )", "Amp", RunStrategy::new("Amp", Amp::f16())),
        ("Amp(fp8)", "Amp", RunStrategy::new("Amp", Amp::fp8())),
        ("Amp(pure_bf16)", "Amp", RunStrategy::new("Amp", Amp::pure_bf16())),
        ("Amp(f32)", "Amp", RunStrategy::new("Amp", Amp::f32())),
        ("Amp(dtype: f16)", "Amp", RunStrategy::new("Amp", Amp::f16())),
        (
            "Amp(keep_f32: [norms, path(\"blocks.0.*\"), head, embeddings], dtype: f16, evaluate_in: f32,
                loss_scale: (initial: 1024, interval: 500, hysteresis: 2, minimum: 0.5))",
            "Amp",
            RunStrategy::new("Amp", amp),
        ),
        (
            "Amp(dtype: f16, loss_scale: (constant: 8))",
            "Amp",
            RunStrategy::new("Amp", Amp::f16().scaled_by(LossScale::constant(8.0))),
        ),
        ("Ema(decay: 0.999)", "Ema", RunStrategy::new("Ema", Ema::new(0.999))),
        ("Ema(decay: 0.9, warmup: false)", "Ema", RunStrategy::new("Ema", Ema::new(0.9).without_warmup())),
        ("Zero(stage: 2)", "Zero", RunStrategy::new("Zero", Zero::stage(2))),
        (
            "Zero(stage: 3, sum_in: bf16, replicate_below: 9, blocks: [\"blocks.*\"])",
            "Zero",
            RunStrategy::new("Zero", zero),
        ),
        (
            "Zero(stage: 1, within: 4, bucket_bytes: 4096)",
            "Zero",
            RunStrategy::new("Zero", Zero::stage(1).within(4).bucket_bytes(4096)),
        ),
        (
            "Zero(stage: 0, each_micro_batch: true)",
            "Zero",
            RunStrategy::new("Zero", Zero::stage(0).each_micro_batch()),
        ),
        (
            "Offload(keep: optimizer, each_update: true)",
            "Offload",
            RunStrategy::new("Offload", Offload::optimizer().each_update()),
        ),
        ("Lora(rank: 8)", "Lora", RunStrategy::new("Lora", Lora::rank(8).alpha(8.0))),
        ("Quantize(nf4)", "Quantize", RunStrategy::new("Quantize", Quantize::nf4())),
        ("Quantize(int8)", "Quantize", RunStrategy::new("Quantize", Quantize::int8())),
        (
            "Lora(rank: 8, rank_stabilized: true, targets: AllLinear)",
            "Lora",
            RunStrategy::new("Lora", Lora::rank(8).rank_stabilized().on_all_linear()),
        ),
        (
            "Lora(rank: 8, dora: true, dropout: 0.05)",
            "Lora",
            RunStrategy::new("Lora", Lora::rank(8).dora().dropout(0.05)),
        ),
        (
            "Lora(rank: 8, alpha: 16, paths: [\"*.query.weight\"], also: [\"head\"])",
            "Lora",
            RunStrategy::new("Lora", lora),
        ),
        (
            "Freeze([\"tokens\", \"positions\"])",
            "Freeze",
            RunStrategy::new("Freeze", Freeze::paths(["positions", "tokens"])),
        ),
        ("Offload(optimizer)", "Offload", RunStrategy::new("Offload", Offload::optimizer())),
        ("Offload(parameters)", "Offload", RunStrategy::new("Offload", Offload::parameters())),
        (
            "Offload(keep: optimizer, on: \"/nvme/scratch\")",
            "Offload",
            RunStrategy::new("Offload", Offload::optimizer().on("/nvme/scratch")),
        ),
        (
            "Offload(keep: optimizer, bucket_bytes: 4096)",
            "Offload",
            RunStrategy::new("Offload", Offload::optimizer().bucket_bytes(4096)),
        ),
        (
            "Offload(keep: parameters, on: \"/nvme\", bucket_bytes: 4096)",
            "Offload",
            RunStrategy::new("Offload", Offload::parameters().on("/nvme").bucket_bytes(4096)),
        ),
        ("Accumulate(4)", "Accumulate", RunStrategy::new("Accumulate", Accumulate(4))),
        ("AccumulateIn(2, bf16)", "AccumulateIn", sum(2, FloatDType::BF16)),
        ("Clip(value: 0.5)", "Clip", RunStrategy::new("Clip", Clip::value(0.5))),
        (
            "Recompute(every: 2, offloaded: true)",
            "Recompute",
            RunStrategy::new("Recompute", Recompute::every(2).offloaded()),
        ),
    ] {
        let read = &strategies(&format!("[{text}]"), &[])[0];
        assert_eq!((read, read.name()), (&recipe, name), "{text}");
        assert_eq!(strategies(&format!("[{}]", written(read)), &[])[0], recipe, "{}", written(read));
    }
    assert_eq!(strategies("[Amp(bf16)]", &["strategies.0.0=f16"])[0], RunStrategy::new("Amp", Amp::f16()));
    let set = strategies("[Amp(dtype: bf16)]", &["strategies.0.dtype=f16", "strategies.0.keep_f32=[norms]"]);
    assert_eq!(set[0], RunStrategy::new("Amp", Amp::f16().keep_f32(Keep::norms())));
}

#[test]
fn a_run_file_that_was_written_is_read_as_the_same() {
    for list in [
        "[Zero(stage: 2), Offload(optimizer), Amp(bf16), Recompute(every: 1), Accumulate(4), Clip(norm: 1.0)]",
        "[Amp(dtype: f16, keep_f32: [norms], loss_scale: (growth: 4, backoff: 0.25)), Zero(stage: 1)]",
        "[Zero(stage: 3, replicate_below: 9), Offload(parameters), Recompute(every: 2, offloaded: true)]",
        "[Zero(stage: 3, within: 8), AccumulateIn(2, bf16), Ema(decay: 0.99)]",
        "[Offload(on: \"scratch\"), Amp(bf16)]",
        "[Freeze([\"tokens\"]), Lora(rank: 8, alpha: 16, paths: [\"*.query.weight\"], also: [\"head\"])]",
        "[Lora(rank: 8, rank_stabilized: true, dora: true, dropout: 0.1, targets: AllLinear)]",
        "[Lora(rank: 8, alpha: 8), Quantize(nf4)]",
    ] {
        let set = format!("strategies={list}");
        let sets: &[&str] = &[&set, "batch=(micro: 1)"];
        let first = run(sets).unwrap();
        let again = Run::parse("run.ron", &first.to_ron(), &[] as &[&str]).unwrap();
        assert_eq!(again, first, "{}", first.to_ron());
    }
    let list = "[Zero(stage: 2), Offload(optimizer), Amp(bf16), Recompute(every: 1), Clip(norm: 1.0)]";
    assert_eq!(strategies_line(&strategies(list, &[])), format!("strategies: {list},"));
}

#[test]
fn run_files_of_older_versions_are_read() {
    let old = "[Zero(stage: 3, sum_in: None, replicate_below: None, blocks: None), Amp(dtype: f16, keep_f32: [],
        evaluate_in: None, loss_scale: (initial: 8.0)), Clip(norm: 1.0, value: None), Lora(rank: 4, alpha: None,
        paths: [], also: []), Recompute(every: 1, paths: None, within: None, elementwise: false, offloaded: false)]";
    let new = "[Zero(stage: 3), Amp(dtype: f16, loss_scale: (initial: 8)), Clip(norm: 1), Lora(rank: 4),
        Recompute(every: 1)]";
    assert_eq!(strategies(old, &[]), strategies(new, &[]));
}

#[test]
fn mistakes_name_their_place_and_the_nearest_name() {
    for (list, expected) in [
        ("[Amp(bf61)]", "unknown name `bf61` (did you mean `bf16`?)"),
        ("[Amp(dtype: f8)]", "unknown name `f8`"),
        ("[Amp(dtype: bf16, keep: [norms])]", "unknown name `keep` (did you mean `keep_f32`?)"),
        ("[Amp(keep_f32: [norms])]", "the field `dtype` is missing"),
        ("[Amp(dtype: bf16, keep_f32: [norm])]", "did you mean `norms`?"),
        ("[Amp(bf16, keep_f32: [norms])]", "expected `,`, found `:`"),
        ("[Amp(dtype: bf16, dtype: f16)]", "dtype"),
        ("[Amp(dtype: f16, loss_scale: (window: 3))]", "unknown name `window`"),
        ("[Amp(dtype: f16, loss_scale: (minimum: 0))]", "`strategies.0.loss_scale.minimum` must be above 0"),
        (
            "[Amp(dtype: f16, loss_scale: (initial: 4, minimum: 8))]",
            "at most `strategies.0.loss_scale.initial`, found 8",
        ),
        ("[Amp(dtype: f16, loss_scale: (constant: 4, interval: 8))]", "the only setting"),
        ("[Amp(dtype: f16, loss_scale: (interval: 0))]", "interval` must be at least 1, found 0"),
        ("[Amp(dtype: f16, loss_scale: (growth: 0.5))]", "growth` must be finite and above 1"),
        ("[Amp(dtype: f16, loss_scale: (backoff: 2))]", "backoff` must be above 0 and below 1"),
        ("[Ema(decay: 1.0)]", "`strategies.0.decay` must be at least 0 and below 1, found 1"),
        ("[Ema(decya: 0.9)]", "did you mean `decay`?"),
        ("[Lora(rank: 0)]", "`strategies.0.rank` must be at least 1"),
        ("[Lora(rank: 1, alpha: -2)]", "`strategies.0.alpha` must be finite and above 0, found -2"),
        ("[Lora(rnak: 1)]", "did you mean `rank`?"),
        (
            "[Lora(rank: 1, targets: AllLinear, paths: [\"*\"])]",
            "`strategies.0.targets` must be left out where `strategies.0.paths` is given, found AllLinear",
        ),
        ("[Lora(rank: 1, targets: AllLinaer)]", "did you mean `AllLinear`?"),
        ("[Quantize(nf5)]", "did you mean `nf4`?"),
        ("[Freeze([])]", "`strategies.0` must be given at least one path"),
        ("[Offload(parameter)]", "did you mean `parameters`?"),
        ("[Offload()]", "`keep`"),
        ("[Offload(keep: optimiser, on: \"x\")]", "did you mean `optimizer`?"),
        ("[Offload(on: \"x\", bucket_bites: 4)]", "did you mean `bucket_bytes`?"),
        ("[Offload(on: \"x\", bucket_bytes: 0)]", "`strategies.0.bucket_bytes` must be at least 1, found 0"),
        (
            "[Offload(keep: parameters, each_update: true)]",
            "`strategies.0.each_update` must be left out where parameters are offloaded, which moves gradients block by block, found true",
        ),
        (
            "[Zero(stage: 2, each_micro_batch: true)]",
            "`strategies.0.each_micro_batch` must be left out in stages 2 and 3, which always do, found true",
        ),
        ("[Offload(on: \"\")]", "`strategies.0.on` must be a folder, found an empty path"),
        ("[Zero(stage: 4)]", "`strategies.0.stage` must be 0, 1, 2 or 3, found 4"),
        ("[Zero(stage: 1, blocks: [\"blocks.0\"])]", "`strategies.0.blocks` must be left out"),
        ("[Zero(stag: 1)]", "did you mean `stage`?"),
        ("[Recompute(every: 1, within: 5)]", "`strategies.0` must be one of (every: 1)"),
        ("[Recompute(every: 0)]", "`strategies.0.every` must be at least 1, found 0"),
        ("[Accumulate(0)]", "`strategies.0` must be at least 1 and at most a billion, found 0"),
        ("[Clip()]", "`strategies.0` must be Clip(norm: ..) or Clip(value: ..), found neither"),
        ("[Clip(norm: -1)]", "`strategies.0` must be a bound that is finite and above 0, found -1"),
        ("[Zreo(stage: 1)]", "unknown name `Zreo` (did you mean `Zero`?); expected one of Amp, Accumulate,"),
    ] {
        let error = error(list);
        assert!(error.contains(expected), "{list}: {error}");
    }
    let both = run(&["strategies=[Accumulate(2)]", "batch=(micro: 1, accumulate: 2)"]).unwrap_err();
    assert!(both.to_string().contains("they are the same, found Accumulate(2)"), "{both}");
    let dtype = run(&["strategies=[]", "batch.accumulate_dtype=bf16"]).unwrap_err().to_string();
    assert!(dtype.contains("nothing is summed"), "{dtype}");
    let ranks = run(&["ranks=0"]).unwrap_err().to_string();
    assert!(ranks.contains("`ranks` must be at least 1"), "{ranks}");
}

fn composed(sets: &[&str]) -> Vec<RunStrategy> {
    run(sets).unwrap().composed()
}

#[test]
fn many_ranks_sum_their_gradients_before_they_are_clipped() {
    let one = composed(&["ranks=1"]);
    assert!(!one.contains(&data_parallel()), "{one:?}");
    let clip = "strategies=[Amp(bf16), Clip(norm: 1.0)]";
    let many = composed(&["ranks=4", clip, "batch.accumulate=2"]);
    assert_eq!(many[..2], [sum(2, FloatDType::F32), data_parallel()], "{many:?}");
    assert_eq!(many[3].name(), "Clip");
    let named = composed(&["ranks=4", "strategies=[Zero(stage: 1), Clip(norm: 1.0)]"]);
    assert_eq!(named[0], RunStrategy::new("Zero", Zero::stage(1)));
    assert_eq!(composed(&["ranks=2", "strategies=[]"]).last(), Some(&data_parallel()));
}

#[test]
fn ranks_whose_micro_batches_are_cut_by_tokens_sum_them() {
    let is_sum = |strategy: &&RunStrategy| strategy.effects().sums.is_some();
    let tokens = "batch=(micro_tokens: 64)";
    let four = composed(&["ranks=4", tokens, "strategies=[Zero(stage: 2), Clip(norm: 1.0)]"]);
    assert_eq!(four[1], sum(1, FloatDType::F32), "{four:?}");
    assert_eq!(four[2].name(), "Clip");
    let written = ["ranks=4", tokens, "strategies=[AccumulateIn(2, bf16), Clip(norm: 1.0)]"];
    assert_eq!(composed(&written).iter().filter(is_sum).count(), 1);
    for without in [["ranks=1", tokens], ["ranks=4", "batch=(micro: 4)"]] {
        let strategies = composed(&[without[0], without[1], "strategies=[Clip(norm: 1.0)]"]);
        assert_eq!(strategies.iter().find(is_sum), None);
    }
    let half = ["strategies=[Clip(norm: 1.0)]", "batch=(micro: 1, accumulate: 8, accumulate_dtype: bf16)"];
    assert_eq!(composed(&half)[0], sum(8, FloatDType::BF16));
}
