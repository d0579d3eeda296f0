//! A plan predicts what a run then measures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use firebrick::world::Collective;
use firebrick::{Interrupter, RankReport, Report, Show};
use firebrick_cli::{Planned, Run};
use serde_json::Value;
use tempfile::TempDir;

use crate::alone;
use crate::support::device;

const GPT: &str = r#"
    data: (path: "FOLDER/text.txt", tokenizer: Characters, block: 64),
    model: Gpt(layers: 3, heads: 4, width: 64),
    batch: (micro: 4, accumulate: 2),
"#;

const BERT: &str = r#"
    task: MaskedLm(),
    data: (
        path: "FOLDER/text.txt",
        tokenizer: Bpe(vocabulary: 300),
        special: (pad: "<pad>", mask: "<mask>"),
        max_length: 64,
        padding: (to: Length(64)),
    ),
    model: Bert(layers: 2, heads: 4, width: 64),
    batch: (micro: 8),
"#;

const T5: &str = r#"
    task: Seq2Seq(source: "source", target: "target"),
    data: (
        path: "FOLDER/pairs.jsonl",
        tokenizer: Bpe(vocabulary: 300),
        special: (pad: "<pad>", eos: "</s>"),
        max_length: 32,
        padding: (to: Length(32)),
    ),
    model: T5(layers: 2, heads: 4, width: 64),
    batch: (micro: 8),
"#;

const BART: &str = r#"
    task: Seq2Seq(source: "source", target: "target"),
    data: (
        path: "FOLDER/pairs.jsonl",
        tokenizer: Bpe(vocabulary: 300),
        special: (pad: "<pad>", eos: "</s>"),
        max_length: 32,
        padding: (to: Length(32)),
    ),
    model: Bart(layers: 2, heads: 4, width: 64),
    batch: (micro: 8),
"#;

/// Wide enough that passes through narrower models stand for those of this one.
const WIDE_GPT: &str = r#"
    data: (path: "FOLDER/text.txt", tokenizer: Characters, block: 32),
    model: Gpt(layers: 4, heads: 6, width: 384),
    batch: (micro: 4),
"#;

const WIDE_T5: &str = r#"
    task: Seq2Seq(source: "source", target: "target"),
    data: (
        path: "FOLDER/pairs.jsonl",
        tokenizer: Bpe(vocabulary: 300),
        special: (pad: "<pad>", eos: "</s>"),
        max_length: 32,
        padding: (to: Length(32)),
    ),
    model: T5(layers: 2, heads: 6, width: 384, inner: 768),
    batch: (micro: 4),
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let line = |i: usize| format!("line {i}: to be or not to be, that is the question {}\n", i * i);
    let text: String = (0..400).map(line).collect();
    fs::write(folder.path().join("text.txt"), text).unwrap();
    let pair = |i: usize| {
        let (source, target) =
            (format!("the number {i}, as one says it"), format!("{} and no more than that", i * 7));
        format!("{{\"source\": \"{source}\", \"target\": \"{target}\"}}\n")
    };
    fs::write(folder.path().join("pairs.jsonl"), (0..400).map(pair).collect::<String>()).unwrap();
    folder
}

fn run(folder: &Path, model: &str, sets: &[String]) -> Run {
    let text = format!(
        "(device: \"cpu\", optimizer: AdamW(), schedule: Constant(lr: 1e-3), steps: 2, evaluate_every: 2,
          output: \"FOLDER/out\", {model})"
    );
    let text = text.replace("FOLDER", &folder.display().to_string());
    Run::parse("run.ron", &text, sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"))
}

/// Returns the activations of a run's last step. In the first one, recomputed blocks are also compared with what they were.
fn activations(folder: &Path) -> usize {
    let metrics = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    let mut lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = lines.rfind(|line| line["kind"] == "train").unwrap();
    last["activation_bytes"].as_u64().unwrap() as usize
}

/// Returns each part of a plan, as predicted and as measured.
fn compared(planned: &Planned, report: &Report, folder: &Path) -> Vec<(&'static str, f64, f64)> {
    let rank = report.ranks.first().cloned().unwrap_or(RankReport {
        master_bytes: report.master_bytes,
        replica_bytes: report.replica_bytes,
        gradient_bytes: report.gradient_bytes,
        optimizer_bytes: report.optimizer_bytes,
        ..RankReport::default()
    });
    let parts = [
        ("master", planned.master_bytes, rank.master_bytes),
        ("replica", planned.replica_bytes, rank.replica_bytes),
        ("gradients", planned.gradient_bytes, rank.gradient_bytes),
        ("optimizer", planned.optimizer_bytes, rank.optimizer_bytes),
        ("host", planned.host_bytes, report.host_bytes),
        ("activations", planned.activation_bytes, activations(folder)),
    ];
    parts.map(|(name, foretold, measured)| (name, foretold as f64, measured as f64)).to_vec()
}

/// Runs each combination as the plan prints it, and returns what is off by more than 7%.
fn away(model: &str, ranks: usize) -> Vec<String> {
    let folder = folder();
    let with_ranks = format!("ranks={ranks}");
    let plan = run(folder.path(), model, std::slice::from_ref(&with_ranks)).plan(None, |_| {}).unwrap();
    // Where micro-batches are accumulated, gradients may be sent once or with each of them.
    let expected = match (ranks, model.contains("accumulate")) {
        (1, false) => 10,
        (1, true) => 14,
        (_, false) => 36,
        (_, true) => 50,
    };
    assert_eq!(plan.combinations.len(), expected, "some do not start");
    let mut away = Vec::new();
    for planned in &plan.combinations {
        let list = planned.strategies.strip_prefix("strategies: ").unwrap().trim_end_matches(',');
        let sets = [format!("strategies={list}"), with_ranks.clone(), "batch.accumulate=None".into()];
        let launched = run(folder.path(), model, &sets).launch(Show::Nothing, Interrupter::new());
        let report = launched.unwrap_or_else(|error| panic!("{list}: {error}")).report;
        assert_eq!(plan.parameters, report.parameters as u64);
        for (name, foretold, measured) in compared(planned, &report, folder.path()) {
            if (foretold - measured).abs() > 0.07 * measured {
                away.push(format!("{ranks} {list}: {name} {foretold}, measured {measured}"));
            }
        }
        away.extend(
            sent_otherwise(planned, &report).into_iter().map(|sent| format!("{ranks} {list}: {sent}")),
        );
    }
    away
}

/// Returns what the first rank sends otherwise than planned.
fn sent_otherwise(planned: &Planned, report: &Report) -> Vec<String> {
    let Some(rank) = report.ranks.first() else { return vec![] };
    let tensors = rank.per_step.iter().filter(|(kind, _)| {
        !matches!(format!("{kind:?}").as_str(), "Scalars" | "Barrier" | "Broadcast" | "Gather")
    });
    let otherwise = tensors.filter_map(|(kind, moved)| {
        let sent = planned.sent.get(kind).copied().unwrap_or_default();
        let as_planned = [sent.elements as f64, sent.bytes as f64] == [moved.elements, moved.sent_bytes];
        (!as_planned).then(|| format!("sent {kind:?} {sent:?}, counted {moved:?}"))
    });
    otherwise.collect()
}

/// Groups of ranks that hold a copy of the state each, or share tokens or layers.
#[test]
fn groups_of_ranks_are_planned_too() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return;
    }
    let folder = folder();
    for (ranks, strategies) in [
        (4, "[Zero(stage: 3, within: 2)]"),
        (6, "[Zero(stage: 3, within: 3), Amp(bf16), Recompute(every: 1), Accumulate(2)]"),
        (4, "[Zero(stage: 2, within: 2), Offload(optimizer), Amp(bf16), Accumulate(2)]"),
        (4, "[Amp(bf16), Accumulate(2), Zero(stage: 1, within: 2)]"),
        (2, "[Zero(stage: 3, within: 1)]"),
        (2, "[Zero(stage: 3, within: 8, sum_in: bf16)]"),
        (4, "[Mesh(context: 2), Zero(stage: 0)]"),
        (4, "[Mesh(context: 4), Zero(stage: 1), Recompute(every: 2), Amp(bf16)]"),
        (4, "[Mesh(context: 2), Zero(stage: 3), Accumulate(2)]"),
        (2, "[Mesh(tensor: 2), Zero(stage: 0)]"),
        (4, "[Mesh(tensor: 2), Zero(stage: 1), Recompute(every: 1), Amp(bf16)]"),
        (4, "[Mesh(tensor: 4), Zero(stage: 2), Accumulate(2)]"),
        (4, "[Mesh(tensor: 2, context: 2), Zero(stage: 3), Clip(norm: 1.0)]"),
        (2, "[Mesh(pipeline: 2), Zero(stage: 0), Accumulate(4)]"),
        (2, "[Mesh(pipeline: 2), Zero(stage: 1), Accumulate(4), Amp(bf16), Recompute(every: 1)]"),
        (4, "[Mesh(pipeline: 2), Zero(stage: 1), Accumulate(2), Amp(bf16)]"),
        (4, "[Mesh(pipeline: 2, schedule: g_pipe), Zero(stage: 2), Accumulate(3)]"),
        (4, "[Mesh(pipeline: 2, tensor: 2), Zero(stage: 0), Accumulate(2), Clip(norm: 1.0)]"),
        (2, "[Mesh(tensor: 2), Zero(stage: 0), Lora(rank: 4)]"),
        (4, "[Mesh(pipeline: 2), Zero(stage: 1), Accumulate(2), Lora(rank: 4, targets: AllLinear)]"),
    ] {
        let sets =
            [format!("strategies={strategies}"), format!("ranks={ranks}"), "batch.accumulate=None".into()];
        let run = run(folder.path(), GPT, &sets);
        let planned = run.plan(None, |_| {}).unwrap().as_written;
        let report = run.launch(Show::Nothing, Interrupter::new()).unwrap().report;
        for (name, foretold, measured) in compared(&planned, &report, folder.path()) {
            let is_near = (foretold - measured).abs() <= 0.07 * measured;
            assert!(is_near, "{ranks} {strategies}: {name} {foretold}, measured {measured}");
        }
        assert_eq!(sent_otherwise(&planned, &report), Vec::<String>::new(), "{ranks} {strategies}");
    }
}

#[test]
fn a_plan_is_what_a_run_measures() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // This test plans for the CPU.
    }
    let mut all = Vec::new();
    let planned = [
        ("Gpt", GPT, 1),
        ("Gpt", GPT, 2),
        ("Bert", BERT, 1),
        ("T5", T5, 1),
        ("Bart", BART, 1),
        ("wide Gpt", WIDE_GPT, 1),
        ("wide T5", WIDE_T5, 1),
    ];
    for (name, model, ranks) in planned {
        all.extend(away(model, ranks).into_iter().map(|away| format!("{name} {away}")));
    }
    assert!(all.is_empty(), "{} are away:\n{}", all.len(), all.join("\n"));
}

/// The block that runs last is the decoder's last one, and the first step sends as much as later ones.
#[test]
fn what_an_encoder_and_a_decoder_send_is_planned() {
    let _alone = alone();
    let folder = folder();
    for (model, steps, accumulate, strategies) in [
        (T5, 1, 1, "[Zero(stage: 3)]"),
        (T5, 2, 3, "[Zero(stage: 3), Amp(bf16)]"),
        (BART, 1, 1, "[Zero(stage: 3)]"),
        (BART, 2, 2, "[Zero(stage: 3), Offload(parameters)]"),
        (T5, 1, 2, "[Mesh(tensor: 2), Zero(stage: 0), KeepPadding]"),
        (BART, 2, 1, "[Mesh(tensor: 2), Zero(stage: 1), Recompute(every: 1), KeepPadding]"),
    ] {
        let sets = [
            format!("strategies={strategies}"),
            format!("batch.accumulate={accumulate}"),
            format!("steps={steps}"),
            "ranks=2".into(),
            "batch.micro=2".into(),
        ];
        let run = run(folder.path(), model, &sets);
        let planned = run.plan(None, |_| {}).unwrap().as_written;
        let report = run.launch(Show::Nothing, Interrupter::new()).unwrap().report;
        assert!(planned.sent.len() >= 2, "{:?}", planned.sent);
        let mut otherwise = sent_otherwise(&planned, &report);
        // Ranks that divide a vocabulary also sum and gather numbers of each label, and padding has none.
        otherwise.retain(|sent| !strategies.contains("tensor") || sent.starts_with("sent ReduceScatter"));
        assert_eq!(otherwise, [""; 0], "{strategies}, {accumulate} micro-batches");
    }
}

/// Whether ranks exchange tensors of an update in calls of this kind.
fn is_exchange(kind: Collective) -> bool {
    matches!(
        kind,
        Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Send
            | Collective::Shift
    )
}

/// The seconds on a cluster are computed from the bytes that ranks count when they train.
#[test]
fn what_a_cluster_sends_is_what_ranks_count() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return;
    }
    let folder = folder();
    for (nodes, gpus) in [(1, 2), (3, 1), (2, 2)] {
        let ranks = nodes * gpus;
        let cluster =
            format!("nodes={nodes},gpus={gpus},intra=1GB/s,inter=1GB/s,peak=1TFLOP/s").parse().unwrap();
        let of_list = |list: &str, ranks: usize| {
            let sets =
                [format!("strategies={list}"), format!("ranks={ranks}"), "batch.accumulate=None".into()];
            run(folder.path(), GPT, &sets)
        };
        let plan = of_list("[Amp(bf16), Accumulate(2), Clip(norm: 1.0)]", 1).plan_on(&cluster, None, |_| {});
        let rows = plan.unwrap().on_cluster.unwrap().rows;
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        let expected = ["as written", "stage 0", "stage 1", "stage 2", "stage 3"];
        assert_eq!(names[..5], expected);
        let more: &[&str] = match ranks {
            2 => &["tensor 2", "pipeline 2", "context 2"],
            4 => &[
                "stage 3 within 2",
                "tensor 2",
                "pipeline 2",
                "context 2",
                "tensor 2, pipeline 2",
                "tensor 2, context 2",
            ],
            _ => &["pipeline 3", "context 3"],
        };
        assert_eq!(names[5..], *more);
        // What a mesh sends depends on the samples, of which the last update on four ranks has fewer.
        let whole = rows.iter().filter(|row| ranks == 2 || !row.strategies.contains("Mesh"));
        for row in whole.skip(1) {
            let list = row.strategies.strip_prefix("strategies: ").unwrap().trim_end_matches(',');
            let report = of_list(list, ranks).launch(Show::Nothing, Interrupter::new()).unwrap().report;
            let counted = report.ranks[0].per_step.iter().filter(|(kind, _)| is_exchange(**kind));
            let sent = counted.clone().map(|(_, moved)| moved.sent_bytes).sum::<f64>();
            assert_eq!(row.sent_bytes as f64, sent, "{ranks} {list}");
            if list.contains("Mesh") {
                continue;
            }
            let counted: BTreeMap<_, _> =
                counted.map(|(kind, moved)| (*kind, [moved.elements, moved.sent_bytes])).collect();
            let mut planned: BTreeMap<Collective, [f64; 2]> = BTreeMap::new();
            for (kind, sent) in row.sent.blocks.iter().chain(&row.sent.rest) {
                let sum = planned.entry(*kind).or_default();
                *sum = [sum[0] + sent.elements as f64, sum[1] + sent.bytes as f64];
            }
            planned.retain(|_, sent| *sent != [0.0; 2]);
            assert_eq!(planned, counted, "{ranks} {list}");
        }
    }
    let cluster = "nodes=2,gpus=2,intra=1GB/s,inter=1GB/s,peak=1TFLOP/s".parse().unwrap();
    for list in [
        "[Mesh(tensor: 2), Zero(stage: 1), Recompute(every: 1), Amp(bf16)]",
        "[Mesh(pipeline: 2), Zero(stage: 0), Accumulate(2)]",
        "[Mesh(tensor: 2, context: 2), Zero(stage: 2)]",
        "[Mesh(pipeline: 2, tensor: 2), Zero(stage: 0), Accumulate(2)]",
    ] {
        let sets = [format!("strategies={list}"), "ranks=4".into(), "batch.accumulate=None".into()];
        let run = run(folder.path(), GPT, &sets);
        let plan = run.plan_on(&cluster, None, |_| {}).unwrap().on_cluster.unwrap();
        let report = run.launch(Show::Nothing, Interrupter::new()).unwrap().report;
        let sent = report.ranks[0].per_step.iter().filter(|(kind, _)| is_exchange(**kind));
        assert_eq!(
            plan.rows[0].sent_bytes as f64,
            sent.map(|(_, moved)| moved.sent_bytes).sum::<f64>(),
            "{list}"
        );
        let time = plan.rows[0].time;
        assert!(time.communication_seconds > plan.rows[0].sent_bytes as f64 / 1e9, "{list}: {time:?}");
    }
}

/// Frozen parameters, low-rank factors, and optimizers with other states.
#[test]
fn what_is_not_trained_and_other_states_are_planned_too() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return;
    }
    let folder = folder();
    for (strategies, optimizer) in [
        ("[Lora(rank: 4), Amp(bf16)]", "AdamW8bit(min_8bit_size: 64)"),
        ("[Lora(rank: 2, paths: [\"*.weight\"], also: [\"norm*\"])]", "Lion()"),
        ("[Lora(rank: 2, dora: true, dropout: 0.1, targets: AllLinear), Amp(bf16)]", "AdamW()"),
        ("[Lora(rank: 4, targets: AllLinear), Quantize(nf4), Amp(bf16)]", "AdamW()"),
        ("[Lora(rank: 4), Quantize(int8), Offload(optimizer)]", "AdamW()"),
        ("[Lora(rank: 4), Quantize(nf4), Recompute(every: 2), Offload(parameters)]", "AdamW()"),
        ("[Freeze([\"tokens\", \"blocks.0\"])]", "AdamW8bit(min_8bit_size: 64)"),
        ("[Offload(optimizer)]", "Adafactor(beta1: 0.9)"),
        ("[]", "Lamb()"),
    ] {
        let sets = [format!("strategies={strategies}"), format!("optimizer={optimizer}")];
        let run = run(folder.path(), GPT, &sets);
        let planned = run.plan(None, |_| {}).unwrap();
        let report = run.launch(Show::Nothing, Interrupter::new()).unwrap().report;
        assert_eq!(planned.parameters, report.parameters as u64, "{strategies}");
        for (name, foretold, measured) in compared(&planned.as_written, &report, folder.path()) {
            let is_near = (foretold - measured).abs() <= 0.07 * measured;
            assert!(is_near, "{strategies} {optimizer}: {name} {foretold}, measured {measured}");
        }
    }
}

/// Lists that treat blocks differently, for a model with more blocks than the traced one.
#[test]
fn what_is_chosen_of_the_blocks_is_planned_for_all_of_them() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return;
    }
    let folder = folder();
    let near = |strategies: &str| {
        let sets = [format!("strategies={strategies}"), "model.layers=6".into(), "batch.micro=8".into()];
        let run = run(folder.path(), GPT, &sets);
        let plan = run.plan(None, |_| {}).unwrap();
        let report = run.launch(Show::Nothing, Interrupter::new()).unwrap().report;
        for (name, foretold, measured) in compared(&plan.as_written, &report, folder.path()) {
            let is_near = (foretold - measured).abs() <= 0.07 * measured;
            assert!(is_near, "{strategies}: {name} {foretold}, measured {measured}");
        }
        plan
    };
    let plan = near("[Recompute(every: 2)]");
    let of = |is_again: bool| {
        let list = |planned: &&Planned| {
            let has = |name| planned.strategies.contains(name);
            !has("Amp") && !has("Offload") && has("Recompute(every: 1)") == is_again
        };
        plan.combinations.iter().find(list).unwrap()
    };
    let (none, all) = (of(false), of(true));
    let again = |flops: f64| 6.0 * (flops - none.flops) / (all.flops - none.flops);
    assert!((again(plan.as_written.flops) - 3.0).abs() < 1e-6);
    // Enough for two blocks that keep their activations and four recomputed ones, which keep their inputs, and far from
    // enough for three. `all` holds the activations of the one block that is being recomputed, so that five are saved.
    let input = 8 * 64 * 64 * 4;
    let within = (none.activation_bytes - all.activation_bytes) / 2 + 6 * input;
    for (chosen, expected) in [
        (r#"Recompute(paths: ["blocks.0", "blocks.1", "blocks.5"])"#, 3.0),
        (&format!("Recompute(within: {within})"), 4.0),
    ] {
        let found = again(near(&format!("[{chosen}]")).as_written.flops);
        assert!((found - expected).abs() < 1e-6, "{chosen}: {found} blocks");
    }
    near(r#"[Freeze(["tokens", "positions", "blocks.0", "blocks.1", "blocks.2", "blocks.3"])]"#);
}

#[test]
fn the_bytes_on_a_disk_are_those_of_the_state() {
    let _alone = alone();
    let folder = folder();
    let path = folder.path().display();
    for (ranks, zero) in [(1, ""), (2, "Zero(stage: 2), ")] {
        let strategies = format!(r#"strategies=[{zero}Offload(keep: optimizer, on: "{path}")]"#);
        let sets = [strategies, format!("ranks={ranks}"), "batch.accumulate=None".into()];
        let plan = run(folder.path(), GPT, &sets).plan(None, |_| {}).unwrap();
        let report = run(folder.path(), GPT, &sets).launch(Show::Nothing, Interrupter::new()).unwrap().report;
        let planned = &plan.as_written;
        assert_eq!(planned.disk_bytes as usize, report.disk.unwrap().state_bytes);
        assert_eq!((planned.optimizer_bytes, report.optimizer_bytes), (0, 0));
        assert_eq!(planned.host_bytes as usize, report.host_bytes);
        let text = plan.summary(true);
        assert!(text.contains("on the disk") && text.contains("on: "), "{text}");
    }
    for (ranks, before, behind) in [
        (1, "", ""),
        (1, "", ", Amp(bf16)"),
        (2, "Zero(stage: 3), ", ", Amp(bf16)"),
        (2, "Zero(stage: 1), ", ""),
    ] {
        let strategies = format!(r#"strategies=[{before}Offload(keep: parameters, on: "{path}"){behind}]"#);
        let sets = [strategies.clone(), format!("ranks={ranks}"), "batch.accumulate=None".into()];
        let plan = run(folder.path(), GPT, &sets).plan(None, |_| {}).unwrap();
        let report = run(folder.path(), GPT, &sets).launch(Show::Nothing, Interrupter::new()).unwrap().report;
        let (planned, disk) = (&plan.as_written, report.disk.unwrap());
        assert_eq!(planned.disk_bytes as usize, disk.state_bytes, "{strategies}");
        assert_eq!(planned.disk_parameter_bytes as usize, disk.parameter_bytes, "{strategies}");
        assert_eq!(planned.host_bytes as usize, report.host_bytes, "{strategies}");
        // When a pass ends, the gradients of blocks are on the host; in stage 3 all are.
        let (on_host, all) = (planned.host_gradient_bytes, planned.gradient_bytes);
        let is_so = match before {
            "Zero(stage: 3), " => on_host == all,
            _ => on_host > 0 && on_host < all,
        };
        assert!(is_so, "{strategies}: {on_host} of {all} bytes of gradients");
        let text = plan.summary(true).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("state and the parameters of blocks take"), "{text}");
    }
    // A plan is often made on another machine than the one that trains.
    let set = r#"strategies=[Offload(keep: optimizer, on: "/nowhere/at/all")]"#.to_string();
    run(folder.path(), GPT, &[set]).plan(None, |_| {}).unwrap();
}
