//! Tests of mixed precision in a run file.

use super::*;
use crate::Run;
use crate::run::StrategyConfig;

fn run(strategies: &str, overrides: &[&str]) -> Result<Run, String> {
    let text = format!(
        r#"(
            data: (path: "input.txt", tokenizer: Characters, block: 8),
            model: Gpt(layers: 1, heads: 1, width: 8),
            optimizer: AdamW(),
            schedule: Constant(lr: 1e-3),
            batch: (micro: 1),
            steps: 10,
            strategies: {strategies},
            output: "out",
        )"#
    );
    Run::parse("run.ron", &text, overrides).map_err(|error| error.to_string())
}

fn amp(strategies: &str, overrides: &[&str]) -> AmpConfig {
    match &run(strategies, overrides).unwrap().strategies[0] {
        StrategyConfig::Amp(amp) => amp.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dtype_alone_is_enough() {
    for (text, recipe) in [
        ("[Amp(bf16)]", Amp::bf16()),
        ("[ Amp( f16 ), Clip(norm: 1.0)]", Amp::f16()),
        ("[Amp(pure_bf16)]", Amp::pure_bf16()),
        ("[Amp(f32)]", Amp::f32()),
        ("[Amp(dtype: f16)]", Amp::f16()),
    ] {
        assert_eq!(amp(text, &[]).recipe(), recipe, "{text}");
    }
    assert_eq!(amp("[Amp(bf16)]", &["strategies.0.0=f16"]).recipe(), Amp::f16());
    assert_eq!(amp("[Amp(bf16)]", &["strategies.0=Amp(f32)"]).recipe(), Amp::f32());
}

#[test]
fn settings_are_named_in_any_order() {
    let text = r#"[Amp(
        keep_f32: [norms, path("blocks.0.*"), head, embeddings],
        dtype: f16, evaluate_in: f32,
        loss_scale: (initial: 1024, interval: 500, hysteresis: 2, minimum: 0.5),
    )]"#;
    let scale = LossScale::dynamic(1024.0).interval(500).hysteresis(2).minimum(0.5);
    let keep = Keep::norms().and(Keep::path("blocks.0.*")).and(Keep::head()).and(Keep::embeddings());
    let expected = Amp::f16().evaluate_in(FloatDType::F32).scaled_by(scale).keep_f32(keep);
    assert_eq!(amp(text, &[]).recipe(), expected);
    let constant = amp("[Amp(dtype: f16, loss_scale: (constant: 8))]", &[]).recipe();
    assert_eq!(constant, Amp::f16().scaled_by(LossScale::constant(8.0)));
    let set = amp("[Amp(dtype: bf16)]", &["strategies.0.dtype=f16", "strategies.0.keep_f32=[norms]"]);
    assert_eq!(set.recipe(), Amp::f16().keep_f32(Keep::norms()));
}

#[test]
fn what_is_written_out_reads_back() {
    for text in [
        "[Amp(bf16)]",
        r#"[Amp(dtype: pure_bf16, keep_f32: [head, path("a.*")], evaluate_in: f32)]"#,
        "[Amp(dtype: f16, loss_scale: (growth: 4, backoff: 0.25)), AccumulateIn(4, bf16)]",
    ] {
        let first = run(text, &[]).unwrap();
        let again = Run::parse("run.ron", &first.to_ron(), &[] as &[&str]).unwrap();
        assert_eq!(again, first, "{}", first.to_ron());
    }
    assert!(run("[Amp(f16)]", &[]).unwrap().to_ron().contains("Amp(f16)"));
}

#[test]
fn accumulation_has_its_dtype() {
    let run =
        run("[Amp(bf16), Clip(norm: 1.0)]", &["batch=(micro: 1, accumulate: 8, accumulate_dtype: bf16)"]);
    assert_eq!(run.unwrap().composed()[1], StrategyConfig::AccumulateIn(8, FloatConfig::bf16));
}

#[test]
fn mistakes_are_told() {
    for (text, expected) in [
        ("[Amp(bf61)]", "unknown name `bf61` (did you mean `bf16`?)"),
        ("[Amp(dtype: f8)]", "unknown name `f8`"),
        ("[Amp(dtype: bf16, keep: [norms])]", "unknown name `keep` (did you mean `keep_f32`?)"),
        ("[Amp(keep_f32: [norms])]", "the field `dtype` is missing"),
        ("[Amp(dtype: bf16, keep_f32: [norm])]", "did you mean `norms`?"),
        ("[Amp(bf16, keep_f32: [norms])]", "expected `,`, found `:`"),
        ("[Amp(dtype: bf16, dtype: f16)]", "dtype"),
        ("[Amp(dtype: f16, loss_scale: (window: 3))]", "unknown name `window`"),
        ("[Amp(dtype: f16, loss_scale: (minimum: 0))]", "`strategies.0.loss_scale.minimum` must be above 0"),
        ("[Amp(dtype: f16, loss_scale: (initial: 4, minimum: 8))]", "at most the initial scale, which is 4"),
        ("[Amp(dtype: f16, loss_scale: (constant: 4, interval: 8))]", "the only setting"),
        ("[Amp(dtype: f16, loss_scale: (interval: 0))]", "interval` must be at least 1, found 0"),
        ("[Amp(dtype: f16, loss_scale: (growth: 0.5))]", "growth` must be finite and above 1"),
        ("[Amp(dtype: f16, loss_scale: (backoff: 2))]", "backoff` must be above 0 and below 1"),
    ] {
        let error = run(text, &[]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = run("[]", &["batch.accumulate_dtype=bf16"]).unwrap_err();
    assert!(error.contains("nothing is summed"), "{error}");
}
