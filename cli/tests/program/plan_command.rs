//! `firebrick plan`.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::{contains, starts_with};
use serde_json::Value;
use tempfile::TempDir;

use crate::small_run::{folder_of, report, train};

const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 16),
    model: Gpt(layers: 5, heads: 2, width: 64),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Constant(lr: 1e-2),
    batch: (micro: 4, accumulate: 2),
    steps: 2,
    strategies: [Clip(norm: 1.0)],
    output: "out",
)
"#;

fn folder() -> TempDir {
    folder_of(RUN, 40)
}

fn plan(folder: &TempDir, options: &[&str]) -> assert_cmd::assert::Assert {
    let mut program = Command::cargo_bin("firebrick").unwrap();
    program.current_dir(folder.path()).args(["plan", "run.ron", "--device", "cpu"]).args(options);
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
        program.env_remove(name);
    }
    program.assert()
}

fn json(assert: assert_cmd::assert::Assert) -> Value {
    let output = assert.success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn what_is_recommended_is_the_first_that_fits() {
    let folder = folder();
    let all = json(plan(&folder, &["--ranks", "2", "--report", "json"]));
    let combinations = all["combinations"].as_array().unwrap();
    assert_eq!((combinations.len(), &all["recommended"]), (50, &Value::from(0)), "all fit a machine");
    let peak = |one: &Value| one["peak_bytes"].as_u64().unwrap();
    // With less than the cheapest needs, it selects a more expensive one. Nothing is written.
    let budget = (peak(&combinations[0]) - 1).to_string();
    let tighter = json(plan(&folder, &["--ranks", "2", "--report", "json", "--budget", &budget]));
    let found = tighter["recommended"].as_u64().unwrap() as usize;
    assert!(found > 0 && peak(&combinations[found]) < peak(&combinations[0]), "{found}");
    assert!(combinations[..found].iter().all(|one| peak(one) > peak(&combinations[0]) - 1));
    assert!(!folder.path().join("out").exists());

    let text = plan(&folder, &["--ranks", "2"]).success();
    let text = text
        .stderr(contains("tracing a pass with no strategies"))
        .stdout(contains("2 ranks x 2 micro-batches of 4 = 16 samples in an update"));
    // The answer comes first, and details only if they are asked for.
    let text = text.stdout(starts_with("As it is written, it fits: "));
    text.stdout(contains("The cheapest that fits, as lines of the run file").and(contains("sent").not()));
    let details = plan(&folder, &["--ranks", "2", "--details"]).success();
    let details = details.stdout(contains("optimizer state").and(contains("All 50 combinations")));
    let page = String::from_utf8(details.get_output().stdout.clone()).unwrap();
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.contains("\n  Offload(parameters), "), "{page}");
}

#[test]
fn where_nothing_fits_it_says_so_and_a_batch_is_found_by_trial() {
    let folder = folder();
    let nothing = plan(&folder, &["--budget", "1kB"]).success();
    nothing.stdout(contains("Nothing fits within 1.00 kB: the least").and(contains("Lower `batch.micro`")));
    let found = plan(&folder, &["--find-batch", "--budget", "1GB"]).success();
    found.stdout("batch: (micro: 8, accumulate: 1),\n").stderr(contains("a micro-batch of 8 fits"));
    let error = plan(&folder, &["--find-batch", "--budget", "1kB"]).failure();
    error.stderr(contains("not even a micro-batch of 1 sample").and(contains("firebrick plan")));
    let error = plan(&folder, &["--budget", "1 gigs"]).failure();
    error.stderr(contains("as in `2GB`"));
    let tokens = ["--find-batch", "--set", "batch=(micro_tokens: 64)"];
    plan(&folder, &tokens).failure().stderr(contains("name samples instead"));
}

const CLUSTER: &str = "nodes=2,gpus=2,intra=450GB/s,inter=50GB/s";

#[test]
fn the_seconds_on_a_cluster_follow_from_its_links() {
    let folder = folder();
    let cluster =
        |more: &str| json(plan(&folder, &["--report", "json", "--cluster", &format!("{CLUSTER}{more}")]));
    let slow = cluster(",peak=A100,mfu=0.5,latency=1ms");
    assert_eq!((&slow["ranks"], &slow["budget_bytes"]), (&Value::from(4), &Value::Null));
    let rows = |plan: &Value| plan["on_cluster"]["rows"].as_array().unwrap().clone();
    let names = rows(&slow).iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let expected = ["as written", "stage 0", "stage 1", "stage 2", "stage 3", "stage 3 within 2"];
    assert_eq!(names[..6], expected);
    let meshes = ["tensor 2", "pipeline 2", "context 2", "tensor 2, pipeline 2", "tensor 2, context 2"];
    assert_eq!(names[6..], meshes);
    let seconds = |row: &Value| row["step_seconds"].as_f64().unwrap();
    let fastest = &rows(&slow)[slow["on_cluster"]["fastest"].as_u64().unwrap() as usize];
    assert!(rows(&slow).iter().all(|row| seconds(row) >= seconds(fastest)), "{slow}");
    for row in rows(&slow) {
        let [compute, exposed, step, speed, mfu] =
            ["compute_seconds", "exposed_seconds", "step_seconds", "tokens_per_second", "mfu"]
                .map(|key| row[key].as_f64().unwrap());
        let close = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-9, "{row}: {found}, not {expected}");
        };
        close(step, compute + exposed);
        close(speed, slow["tokens"].as_f64().unwrap() / step);
        // In f32, with the operations of the run, whose blocks run again in stage 3.
        let recomputes = row["strategies"].as_str().unwrap().contains("stage: 3");
        let flops = slow["as_written"]["flops"].as_f64().unwrap();
        close(mfu, flops / (4.0 * 156e12 * step));
        match recomputes {
            false => close(compute, flops / (4.0 * 156e12 * 0.5)),
            true => assert!(compute > flops / (4.0 * 156e12 * 0.5)),
        }
    }
    // The peak of `--peak-flops` serves a device that is not known.
    let options = ["--report", "json", "--peak-flops", "1e12", "--cluster", CLUSTER];
    assert_eq!(json(plan(&folder, &options))["on_cluster"]["peak_flops"], Value::from(1e12));

    let text = plan(&folder, &["--cluster", &format!("{CLUSTER},peak=A100")]).success();
    let page = String::from_utf8(text.get_output().stdout.clone()).unwrap();
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.contains("\nfastest if it fits (see --budget): "), "{page}");
    assert!(page.contains("\n2 x 2 = 4 ranks: 450 GB/s") && page.contains("\nstage 3 within 2 "), "{page}");
    assert!(page.contains("4 ranks x 2 micro-batches of 4 = 32 samples"), "{page}");
}

#[test]
fn a_cluster_that_cannot_be_planned_for_says_what_to_write() {
    let folder = folder();
    let unknown = plan(&folder, &["--cluster", CLUSTER]).code(1);
    unknown.stderr(contains("the peak of cpu:0 in F32 is not known").and(contains("`peak=A100`")));
    let no_bf16 = format!("{CLUSTER},peak=T4");
    let unknown = plan(&folder, &["--cluster", &no_bf16, "--set", "strategies=[Amp(bf16)]"]).code(1);
    unknown.stderr(contains("the peak of T4 in BF16 is not known"));
    plan(&folder, &["--cluster", "nodes=2,gpus=2"])
        .code(2)
        .stderr(contains("`inter` is missing; an example"));
    plan(&folder, &["--cluster", CLUSTER, "--ranks", "2"]).code(2).stderr(contains("cannot be used with"));
    plan(&folder, &["--cluster", CLUSTER, "--find-batch"]).code(2).stderr(contains("cannot be used with"));
}

/// Tokens per second, times the operations that a plan counts for a token, over the peak.
#[test]
fn a_run_shows_the_share_of_the_peak_that_it_uses() {
    let folder = folder();
    let plain = json(plan(&folder, &["--report", "json"]));
    let per_token = plain["as_written"]["flops"].as_f64().unwrap() / plain["tokens"].as_f64().unwrap();
    let options = ["--peak-flops", "1e12", "--device", "cpu", "--plain"];
    for more in [&[][..], &["--set", "strategies=[Recompute(every: 1), Clip(norm: 1.0)]"], &["--ranks", "2"]]
    {
        let mut program = train(folder.path(), &options);
        let assert = program.args(more).assert().success().stderr(contains("  mfu "));
        let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
        let expected = |speed: &Value| speed.as_f64().unwrap() * per_token / 1e12;
        let close = |mfu: &Value, speed| (mfu.as_f64().unwrap() / expected(speed) - 1.0).abs() < 1e-9;
        assert!(close(&report["mfu"], &report["tokens_per_second"]), "{more:?}: {report}");
        // Ranks that are threads on the CPU share the device.
        assert_eq!(report["tokens_per_second_per_device"], report["tokens_per_second"]);
        let log = std::fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
        let step: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert!(close(&step["mfu"], &step["tokens_per_second"]), "{more:?}: {step}");
    }
    // The peak of a CPU is not known.
    let report = report(&mut train(folder.path(), &["--device", "cpu"]));
    assert!(report["tokens_per_second"].is_number() && report.get("mfu").is_none(), "{report}");
    let refused = train(folder.path(), &["--peak-flops", "0"]).assert().code(1);
    refused.stderr(contains("`peak_flops` must be finite and at least 1"));
}

/// Writes the configuration of a Llama of these layers and of this width, in heads of 64.
fn config(folder: &TempDir, layers: usize, width: usize) -> String {
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": width,
        "intermediate_size": 2 * width, "num_hidden_layers": layers, "num_attention_heads": width / 64,
        "num_key_value_heads": width / 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    });
    let path = folder.path().join("a config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn plan_of(model: &str, options: &[&str]) -> assert_cmd::assert::Assert {
    let mut program = Command::cargo_bin("firebrick").unwrap();
    program.args(["plan", model, "--device", "cpu"]).args(options).assert()
}

#[test]
fn a_configuration_alone_is_planned_with_the_largest_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, 3, 384);
    let plan = |options: &[&str]| {
        json(plan_of(
            &config,
            &[&["--tokens", "64", "--budget", "200MB", "--report", "json"], options].concat(),
        ))
    };
    let of_one = plan(&[]);
    let (block, rest) = (384 * 384 * 4 + 3 * 384 * 768 + 2 * 384, 2 * 1000 * 384 + 384);
    assert_eq!(of_one["parameters"], Value::from(3 * block + rest));
    // A window reads 64 tokens, and the one behind each.
    assert_eq!((&of_one["row_tokens"], &of_one["tokens"]), (&Value::from(64), &Value::from(65.0)));
    let combinations = of_one["combinations"].as_array().unwrap();
    assert_eq!(combinations.len(), 10);
    let most = combinations[0]["largest_micro"].as_u64().unwrap();
    let fits = |rows: u64| plan(&["--batch", &rows.to_string()])["combinations"][0]["fits"].clone();
    // Small blocks may be left out of what tells it.
    let near = most / 20 + 1;
    assert_eq!([fits(most - near), fits(most + near + 1)], [true, false].map(Value::from), "{most}");
    // A micro-batch is found by the plan, without a step, for a model that could not take one here.
    let sets = ["--tokens", "64", "--budget", "200MB", "--set", "batch.accumulate=64", "--find-batch"];
    let found = plan_of(&config, &sets).success();
    let divisor = (1..=most).rev().find(|rows| 64 % rows == 0).unwrap();
    found.stdout(format!("batch: (micro: {divisor}, accumulate: {}),\n", 64 / divisor));
}

#[test]
fn a_model_that_no_machine_holds_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, 96, 12_288);
    let plan = json(plan_of(&config, &["--tokens", "128", "--budget", "80GB", "--report", "json"]));
    let block = 12_288u64 * 12_288 * (4 + 6) + 2 * 12_288;
    assert_eq!(plan["parameters"], Value::from(96 * block + 2 * 1000 * 12_288 + 12_288));
    let fits = |one: &Value| one["fits"] == true;
    assert!(!fits(&plan["as_written"]));
    // Of the parameters, a device has a block at a time.
    let recommended = &plan["combinations"][plan["recommended"].as_u64().unwrap() as usize];
    assert_eq!(recommended["strategies"], Value::from("strategies: [Offload(parameters)],"));
    let all = plan["combinations"].as_array().unwrap();
    let of_block = |one: &Value| one["strategies"].as_str().unwrap().contains("Offload(parameters)");
    assert!(all.iter().all(|one| fits(one) == of_block(one)), "{plan}");
    assert!(all.iter().all(|one| of_block(one) || one["largest_micro"] == 0), "{plan}");
}

/// Plans a model of which only the configuration is known, and returns the largest micro-batch of each combination.
fn largest_of(config: &Value, options: &[&str]) -> Vec<(String, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let plan = json(plan_of(path.to_str().unwrap(), &[&["--report", "json"], options].concat()));
    let combinations = plan["combinations"].as_array().unwrap();
    let largest = |one: &Value| {
        let line = one["strategies"].as_str().unwrap();
        let listed = line.replace("strategies: [", "").replace("],", "").replace('\n', "");
        let listed = listed.split_whitespace().collect::<Vec<_>>().join(" ");
        (listed.trim_end_matches(',').into(), one["largest_micro"].as_u64().unwrap())
    };
    combinations.iter().map(largest).collect()
}

fn rows_of(largest: &[(String, u64)], strategies: &str) -> u64 {
    let found = largest.iter().find(|(listed, _)| listed == strategies);
    found.unwrap_or_else(|| panic!("{strategies:?} is none of {largest:?}")).1
}

/// The introduction of ZeRO to Hugging Face's Trainer: the largest micro-batches of T5 with 128 tokens in source and target, on
/// cards of 24 GB, two for the smaller model. `docs/commands.md` says why more of its rows fit here.
#[test]
fn the_batches_published_for_zero_fit() {
    let t5 = |heads: usize, inner: usize, of_head: usize| {
        serde_json::json!({
            "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128,
            "d_model": 1024, "d_kv": of_head, "d_ff": inner, "num_layers": 24, "num_heads": heads,
            "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
        })
    };
    let plan = |config: &Value, ranks: &str| {
        largest_of(config, &["--tokens", "128", "--budget", "24GB", "--ranks", ranks])
    };
    let large = plan(&t5(16, 4096, 64), "2");
    for (strategies, published, documented) in [
        ("", 16, 35),
        ("Amp(bf16)", 20, 63),
        ("Zero(stage: 1), Amp(bf16)", 30, 84),
        ("Zero(stage: 2), Amp(bf16)", 40, 81),
        ("Zero(stage: 2), Offload(optimizer), Amp(bf16)", 50, 105),
    ] {
        let rows = rows_of(&large, strategies);
        assert!(rows >= published && rows.abs_diff(documented) <= 2, "{strategies}: {rows}");
    }
    // Without offload none fits; with it 20 do, and 30 don't.
    let of_3b = plan(&t5(32, 16_384, 128), "1");
    assert_eq!(["", "Amp(bf16)"].map(|strategies| rows_of(&of_3b, strategies)), [0, 0]);
    let rows = rows_of(&of_3b, "Offload(optimizer), Amp(bf16)");
    assert!((20..30).contains(&rows), "{rows}");
}

/// ZeRO-Offload (Ren et al., 2021, arXiv:2101.06840): 13 billion parameters on one card of 32 GB, with the optimizer on the host
/// and recompute.
#[test]
fn thirteen_billion_parameters_fit_a_card_as_published() {
    let gpt = serde_json::json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 4096, "n_layer": 65, "n_head": 32,
    });
    let largest = largest_of(&gpt, &["--tokens", "1024", "--budget", "32GB"]);
    let (in_blocks, rest): (Vec<_>, Vec<_>) =
        largest.into_iter().partition(|(listed, _)| listed.contains("Offload(parameters)"));
    assert!(in_blocks.iter().all(|(_, rows)| *rows > 100), "{in_blocks:?}");
    let fits = |(listed, rows): &(String, u64)| (*rows > 0).then(|| listed.clone());
    let fitting: Vec<_> = rest.iter().filter_map(fits).collect();
    assert_eq!(fitting, ["Offload(optimizer), Amp(bf16), Recompute(every: 1)"]);
    assert!(rows_of(&rest, &fitting[0]) >= 8, "{rest:?}");
}

/// QLoRA (Dettmers et al., 2023, arXiv:2305.14314): a Llama of 65 billion parameters on one card of 48 GB, rows of 512 tokens
/// one by one, factors of rank 64.
#[test]
fn a_quantized_llama_of_65_billion_parameters_fits_a_card_as_published() {
    let llama = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 8192,
        "intermediate_size": 22016, "num_hidden_layers": 80, "num_attention_heads": 64,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    let set = "strategies=[Amp(bf16), Recompute(every: 1), Lora(rank: 64), Quantize(nf4)]";
    let largest = largest_of(&llama, &["--tokens", "512", "--budget", "48GB", "--set", set]);
    let rows = rows_of(&largest, "Lora(rank: 64, alpha: 64.0), Quantize(nf4), Amp(bf16)");
    assert!((1..10).contains(&rows), "{largest:?}");
}

#[test]
fn rows_that_are_too_short_or_too_many_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, 2, 64);
    for (options, found) in [
        (vec!["--tokens", "512", "--batch", "40000"], "found 40000 rows of 512".to_owned()),
        (vec!["--set", "batch.accumulate=1000000000"], "found 1000000000 rows of 512".to_owned()),
    ] {
        let refused = plan_of(&config, &options).code(1);
        refused.stderr(contains(found).and(contains("lower --tokens, --batch or `batch.accumulate`")));
    }
    for tokens in ["1", "1000001"] {
        let refused = plan_of(&config, &["--tokens", tokens]).code(2);
        refused.stderr(contains(format!("{tokens} is not in 2..=1000000")));
    }
}

#[test]
fn rows_stand_for_the_data_and_the_tokenizer_of_every_task() {
    let folder = tempfile::tempdir().unwrap();
    for (task, model, tokenizer) in [
        ("CausalLm()", "Gpt(layers: 2, heads: 2, width: 64)", "File(\"not/there.json\")"),
        ("CausalLm(rows: Packed)", "Llama(layers: 2, heads: 2, width: 64)", "Bpe(vocabulary: 300)"),
        ("Dpo()", "Llama(layers: 2, heads: 2, width: 64)", "Characters"),
        ("MaskedLm()", "Bert(layers: 2, heads: 2, width: 64)", "Bpe(vocabulary: 300)"),
        ("TokenClassification()", "ModernBert(layers: 2, heads: 2, width: 64)", "Characters"),
        ("SequenceClassification(kind: Classes)", "Bert(layers: 2, heads: 2, width: 64)", "Characters"),
        ("SequenceClassification(kind: Number)", "Bert(layers: 2, heads: 2, width: 64)", "Characters"),
        ("Seq2Seq()", "T5(layers: 2, heads: 2, width: 64)", "Characters"),
        ("Seq2Seq()", "Bart(layers: 2, heads: 2, width: 64)", "Bpe(vocabulary: 300)"),
    ] {
        let run = format!(
            "(task: {task}, data: (path: \"nowhere.jsonl\", tokenizer: {tokenizer}, block: 8, max_length: 8), \
             model: {model}, optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 3), steps: 1, \
             output: \"out\")"
        );
        let block = if task == "CausalLm()" {
            run.replace(", max_length: 8", "")
        } else {
            run.replace(", block: 8", "")
        };
        std::fs::write(folder.path().join("run.ron"), block).unwrap();
        let plan = json(self::plan(&folder, &["--tokens", "32", "--report", "json"]));
        let per_row = plan["tokens"].as_f64().unwrap() / 3.0;
        let expected = match task.split('(').next().unwrap() {
            "Seq2Seq" | "Dpo" => 64.0,
            _ => 32.0,
        };
        // The last micro-batch may be smaller, and a window has one token more.
        assert!((per_row - expected).abs() < 3.0, "{task} {model}: {per_row}");
    }
}
