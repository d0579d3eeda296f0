//! Tests each family of fields except optimizers and schedules: their results and their errors.

use super::testing::{field, import, lines, outcome, refused, strategies};
use super::*;

#[test]
fn precision() {
    assert_eq!(strategies(r#"{"bf16": {"enabled": true}}"#, None), ["Amp(bf16)"]);
    assert_eq!(strategies(r#"{"bfloat16": {"enabled": true}}"#, None), ["Amp(bf16)"]);
    assert_eq!(strategies(r#"{"bf16": {"enabled": false}}"#, None), [""; 0]);
    let scale = |fields: &str| strategies(&format!(r#"{{"fp16": {{"enabled": true{fields}}}}}"#), None);
    let moving =
        "Amp(dtype: f16, loss_scale: (initial: 65536.0, interval: 1000, hysteresis: 2, minimum: 1.0))";
    assert_eq!(scale(""), [moving]);
    assert_eq!(scale(r#", "loss_scale": 0.0"#), [moving]);
    assert_eq!(scale(r#", "loss_scale": 128"#), ["Amp(dtype: f16, loss_scale: (constant: 128.0))"]);
    let autocast = r#"{"torch_autocast": {"enabled": true, "dtype": "float16"}}"#;
    assert_eq!(strategies(autocast, None), ["Amp(f16)"]);
    // Accelerate adds what the ds_config lacks.
    assert_eq!(strategies("{}", Some(r#"{"bf16": true}"#)), ["Amp(bf16)"]);
    assert_eq!(strategies(r#"{"fp16": {"enabled": "auto"}}"#, Some(r#"{"fp16_full_eval": true}"#)), [moving]);
    let full_eval = r#"{"bf16": false, "bf16_full_eval": true}"#;
    assert_eq!(strategies(r#"{"bf16": {"enabled": "auto"}}"#, Some(full_eval)), ["Amp(bf16)"]);
    let both = refused("{\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}", None);
    assert!(
        both.starts_with("ds.json:2: `bf16.enabled` must be false where `fp16.enabled` is true"),
        "{both}"
    );
    let differ = refused(r#"{"bf16": {"enabled": true}}"#, Some(r#"{"bf16": false}"#));
    assert!(
        differ.contains("`bf16.enabled` is true, but `bf16` of the training arguments is false"),
        "{differ}"
    );
    let recipe = r#"{"bf16": {"enabled": true}, "fp8": {"enabled": true, "fp8_format": "HYBRID", "margin": 0,
        "amax_history_len": 1024, "override_linear_precision": [false, false, false]}}"#;
    assert_eq!(strategies(recipe, None), ["Amp(fp8)"]);
    assert_eq!(strategies(r#"{"fp8": {"enabled": false, "margin": 2}}"#, None), [""; 0]);
    let accelerate =
        r#"{"bf16": true, "mixed_precision": "fp8", "fp8_config": {"backend": "TE", "fp8_format": "E4M3"}}"#;
    assert_eq!(strategies("{}", Some(accelerate)), ["Amp(fp8)"]);
    assert_eq!(outcome("fp8_config.fp8_format", "{}", Some(accelerate)), ("not supported", true));
    assert_eq!(outcome("fp8_config.backend", "{}", Some(accelerate)), ("no effect", false));
    let same = r#"{"bf16": true, "mixed_precision": "bf16"}"#;
    assert_eq!(outcome("mixed_precision", "{}", Some(same)), ("no effect", false));
    let alone = r#"{"mixed_precision": "bf16"}"#;
    assert_eq!(outcome("mixed_precision", "{}", Some(alone)), ("not supported", true));
    let half = refused(r#"{"fp16": {"enabled": true}, "fp8": {"enabled": true}}"#, None);
    assert!(half.contains("`fp16.enabled` must be false where products are in 8 bits"), "{half}");
    let format = refused(r#"{"fp8": {"enabled": true, "fp8_format": "E5M2"}}"#, None);
    assert!(format.contains("\"HYBRID\" or \"E4M3\""), "{format}");
    let power = refused(r#"{"fp16": {"enabled": true, "initial_scale_power": 127}}"#, None);
    assert!(power.contains("must be a whole number from 0 to 126, found 127"), "{power}");
    let minimum =
        refused(r#"{"fp16": {"enabled": true, "initial_scale_power": 2, "min_loss_scale": 8}}"#, None);
    assert!(minimum.contains("at most the first loss scale, which is 4.0, found 8"), "{minimum}");
}

#[test]
fn zero_and_offload() {
    let zero = |fields: &str| strategies(&format!(r#"{{"zero_optimization": {{{fields}}}}}"#), None);
    assert_eq!(zero(r#""stage": 2"#), ["Zero(stage: 2)"]);
    assert_eq!(zero(r#""stage": 0"#), [""; 0]);
    let offload = |stage: u8, part: &str, device: &str| {
        zero(&format!(r#""stage": {stage}, "offload_{part}": {{"device": "{device}"}}"#))
    };
    assert_eq!(offload(1, "optimizer", "cpu"), ["Offload(optimizer)", "Zero(stage: 1)"]);
    assert_eq!(offload(3, "param", "cpu"), ["Zero(stage: 3)", "Offload(parameters)"]);
    assert_eq!(offload(3, "param", "nvme"), ["Zero(stage: 3)", "Offload(parameters)"]);
    assert_eq!(offload(2, "param", "cpu"), ["Zero(stage: 2)"]);
    assert_eq!(offload(2, "optimizer", "none"), ["Zero(stage: 2)"]);
    assert_eq!(zero(r#""stage": 2, "cpu_offload": true"#), ["Zero(stage: 2)", "Offload(optimizer)"]);
    assert_eq!(
        zero(r#""stage": 3, "stage3_param_persistence_threshold": 1e4"#),
        ["Zero(stage: 3, replicate_below: 10000)"]
    );
    assert_eq!(zero(r#""stage": 2, "stage3_param_persistence_threshold": 1e4"#), ["Zero(stage: 2)"]);
    assert_eq!(zero(r#""stage": 3, "mics_shard_size": 8"#), ["Zero(stage: 3, within: 8)"]);
    assert_eq!(zero(r#""stage": 3, "mics_shard_size": -1"#), ["Zero(stage: 3)"]);
    assert_eq!(zero(r#""stage": 2, "mics_shard_size": 8"#), ["Zero(stage: 2)"]);
    let groups = r#"{"zero_optimization": {"stage": 3, "mics_shard_size": -2}}"#;
    assert!(refused(groups, None).contains("must be a number of ranks, or -1, found -2"));
    let uneven = r#"{"zero_optimization": {"stage": 3, "mics_shard_size": 3}}"#;
    let error = Import::of("ds.json", uneven).ranks(4).run().unwrap_err().to_string();
    assert!(
        error.contains("must be a number of ranks that divides the 4 of the run, or -1, found 3"),
        "{error}"
    );
    let sum_in =
        r#"{"communication_data_type": "fp16", "gradient_accumulation_steps": 2, "gradient_clipping": 1}"#;
    assert_eq!(strategies(sum_in, None), ["Accumulate(2)", "Zero(stage: 0, sum_in: f16)", "Clip(norm: 1.0)"]);
    let on_disk = r#""offload_optimizer": {"device": "nvme", "nvme_path": "/a b\"c"}"#;
    let expected = [r#"Offload(keep: optimizer, on: "/a b\"c")"#, "Zero(stage: 1)"];
    assert_eq!(zero(&format!(r#""stage": 1, {on_disk}"#)), expected);
    assert_eq!(zero(&format!(r#""stage": 0, {on_disk}"#)), [""; 0]);
    assert_eq!(
        zero(&format!(r#""stage": 3, {on_disk}, "offload_param": {{"device": "cpu"}}"#)),
        ["Zero(stage: 3)", r#"Offload(keep: parameters, on: "/a b\"c")"#]
    );
    let params_on_disk = r#""offload_param": {"device": "nvme", "nvme_path": "/p"}"#;
    let expected = ["Zero(stage: 3)", r#"Offload(keep: parameters, on: "/p")"#];
    assert_eq!(zero(&format!(r#""stage": 3, {params_on_disk}"#)), expected);
    let host = r#""offload_optimizer": {"device": "cpu"}"#;
    assert_eq!(zero(&format!(r#""stage": 3, {params_on_disk}, {host}"#)), expected);
    assert_eq!(zero(&format!(r#""stage": 2, {params_on_disk}"#)), ["Zero(stage: 2)"]);
    // The table says where both go.
    let parts = [params_on_disk, host, on_disk, r#""offload_param": {"device": "cpu"}"#];
    for (one, other) in [(parts[0], parts[1]), (parts[2], parts[3])] {
        let config = format!(r#"{{"zero_optimization": {{"stage": 3, {one}, {other}}}}}"#);
        let imported = import(&config, None).unwrap();
        let devices = imported.rows.iter().filter(|row| row.path.ends_with(".device"));
        let said: Vec<_> = devices.map(|row| format!("{:?}", row.outcome)).collect();
        let is_there = |said: &String| said.contains("Offload(keep: parameters, on:");
        assert!(said.len() == 2 && said.iter().all(is_there), "{said:?}");
    }
    // A run has one folder.
    assert_eq!(
        zero(&format!(r#""stage": 3, {params_on_disk}, {on_disk}"#)),
        ["Zero(stage: 3)", r#"Offload(keep: parameters, on: "/a b\"c")"#]
    );
    let two = format!(r#"{{"zero_optimization": {{"stage": 3, {params_on_disk}, {on_disk}}}}}"#);
    assert_eq!(outcome("zero_optimization.offload_param.nvme_path", &two, None), ("not supported", false));
    let taken = format!(r#"{{"zero_optimization": {{"stage": 2, {on_disk}}}}}"#);
    for name in ["device", "nvme_path"] {
        let path = format!("zero_optimization.offload_optimizer.{name}");
        assert_eq!(outcome(&path, &taken, None), ("taken", false));
    }
    // DeepSpeed needs a path.
    let nvme =
        r#"{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "ratio": 0.5}}}"#;
    for name in ["device", "ratio"] {
        let path = format!("zero_optimization.offload_optimizer.{name}");
        assert_eq!(outcome(&path, nvme, None), ("not supported", false));
    }
    assert!(refused(r#"{"zero_optimization": {"stage": 4}}"#, None).contains("from 0 to 3, found 4"));
    let device = r#"{"zero_optimization": {"offload_param": {"device": "gpu"}}}"#;
    assert!(refused(device, None).contains(r#"must be "cpu", "nvme" or "none", found "gpu""#));
}

#[test]
fn strategies_are_in_a_valid_order() {
    let config = |stage: u8| {
        format!(
            r#"{{"zero_optimization": {{"stage": {stage}, "offload_optimizer": {{"device": "cpu"}}}},
                "bf16": {{"enabled": true}}, "activation_checkpointing": {{"cpu_checkpointing": true}},
                "gradient_clipping": 0.5, "gradient_accumulation_steps": 4, "data_types": {{"grad_accum_dtype": "bf16"}}}}"#
        )
    };
    let middle = ["Amp(bf16)", "Recompute(every: 1, offloaded: true)", "AccumulateIn(4, bf16)"];
    let expected = [&["Zero(stage: 3)", "Offload(optimizer)"][..], &middle, &["Clip(norm: 0.5)"]].concat();
    assert_eq!(strategies(&config(3), None), expected);
    let expected = [&["Offload(optimizer)"][..], &middle, &["Zero(stage: 1)", "Clip(norm: 0.5)"]].concat();
    assert_eq!(strategies(&config(1), None), expected);
}

#[test]
fn clipping_and_recompute() {
    assert_eq!(strategies(r#"{"gradient_clipping": 0}"#, None), [""; 0]);
    assert_eq!(outcome("gradient_clipping", r#"{"gradient_clipping": 0}"#, None), ("no effect", false));
    assert_eq!(strategies(r#"{"gradient_clipping": "auto"}"#, Some("{}")), ["Clip(norm: 1.0)"]);
    assert_eq!(strategies(r#"{"gradient_clipping": "auto"}"#, Some(r#"{"max_grad_norm": 0}"#)), [""; 0]);
    // Trainer does not clip either in this case.
    assert_eq!(strategies("{}", Some(r#"{"max_grad_norm": 1.0}"#)), [""; 0]);
    assert_eq!(outcome("max_grad_norm", "{}", Some(r#"{"max_grad_norm": 1.0}"#)), ("no effect", false));
    assert!(refused(r#"{"gradient_clipping": -1}"#, None).contains("found -1"));
    assert_eq!(strategies("{}", Some(r#"{"gradient_checkpointing": true}"#)), ["Recompute(every: 1)"]);
    // The new name wins, as in Trainer, and its settings are those of `Recompute`.
    let both = r#"{"activation_checkpointing": true, "gradient_checkpointing": false}"#;
    assert_eq!(strategies("{}", Some(both)), ["Recompute(every: 1)"]);
    let off = r#"{"activation_checkpointing": false, "gradient_checkpointing": true}"#;
    assert_eq!(strategies("{}", Some(off)), [""; 0]);
    let some = r#"{"activation_checkpointing": true,
        "activation_checkpointing_kwargs": {"every_n_layers": 2, "offload": true, "use_reentrant": false}}"#;
    assert_eq!(strategies("{}", Some(some)), ["Recompute(every: 2, offloaded: true)"]);
    for (setting, expected) in [("every_n_layers", "taken"), ("use_reentrant", "no effect")] {
        let found = outcome(&format!("activation_checkpointing_kwargs.{setting}"), "{}", Some(some));
        assert_eq!(found, (expected, false), "{setting}");
    }
    assert_eq!(strategies(r#"{"activation_checkpointing": {"profile": true}}"#, None), [""; 0]);
}

#[test]
fn length_evaluation_and_checkpoints() {
    let of = |name: &str, args: &str| field(name, "{}", Some(args));
    assert_eq!(
        [of("steps", r#"{"max_steps": 9, "num_train_epochs": 2}"#), of("epochs", r#"{"max_steps": 9}"#)],
        ["9", ""]
    );
    assert_eq!([of("epochs", "{}"), of("epochs", r#"{"num_train_epochs": 2.0}"#)], ["3", "2"]);
    assert_eq!(
        outcome("num_train_epochs", "{}", Some(r#"{"num_train_epochs": 2.5}"#)),
        ("not supported", true)
    );
    let evaluated = |args: &str| {
        of("evaluate_every", &format!(r#"{{"max_steps": 1000, "eval_strategy": "steps"{args}}}"#))
    };
    assert_eq!(evaluated(""), "500");
    assert_eq!(evaluated(r#", "logging_steps": 20"#), "20");
    assert_eq!(evaluated(r#", "eval_steps": 50, "logging_steps": 20"#), "50");
    assert_eq!(evaluated(r#", "eval_steps": 0.0251"#), "26");
    let share = r#"{"evaluation_strategy": "steps", "eval_steps": 0.1}"#;
    assert_eq!(outcome("eval_steps", "{}", Some(share)), ("not supported", false));
    assert_eq!(of("checkpoints", "{}"), "(every: 500)");
    assert_eq!(of("checkpoints", r#"{"save_strategy": "no"}"#), "");
    assert_eq!(
        of("checkpoints", r#"{"save_steps": 0.5, "max_steps": 10, "save_total_limit": 1}"#),
        "(every: 5, keep_last: 1)"
    );
    assert!(refused("{}", Some(r#"{"save_strategy": "never"}"#)).contains("`save_strategy` must be"));
    assert!(refused("{}", Some(r#"{"max_steps": 1.5}"#)).contains("`max_steps` must be a number of updates"));
}

#[test]
fn data_seed_and_output() {
    let args = r#"{"output_dir": "a \"b\"", "seed": 7, "data_seed": 8, "ddp_timeout": 60, "dataloader_num_workers": 0}"#;
    let lines = lines("{}", Some(args));
    assert!(lines.contains(&r#"output: "a \"b\"""#.to_string()), "{lines:?}");
    assert!(
        lines.contains(&"seed: 7".to_string()) && lines.contains(&"deadline: 60".to_string()),
        "{lines:?}"
    );
    assert_eq!(outcome("data_seed", "{}", Some(args)), ("not supported", true));
    let run_file = |args: &str| import("{}", Some(args)).unwrap().run_file;
    assert!(run_file(args).contains("valid_fraction: 0.0") && run_file(args).contains("workers: 1"));
    let grouped = run_file(r#"{"train_sampling_strategy": "group_by_length", "eval_strategy": "epoch"}"#);
    assert!(
        grouped.contains("group_by_length: true") && grouped.contains("valid: \"valid.txt\""),
        "{grouped}"
    );
    assert!(refused("{}", Some(r#"{"output_dir": ""}"#)).contains("the path of a folder"));
}

#[test]
fn degrees_are_axes_of_a_mesh() {
    let config = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "sequence_parallel_size": 2,
        "tensor_parallel": {"autotp_size": 4}}"#;
    let run_file = |ranks| Import::of("ds.json", config).ranks(ranks).run().map(|imported| imported.run_file);
    let text = run_file(16).unwrap();
    assert!(
        text.contains("    ranks: 16,\n") && text.contains("    mesh: (tensor: 4, context: 2),\n"),
        "{text}"
    );
    // Two groups of eight ranks.
    assert!(text.contains("Accumulate(8)"), "{text}");
    let error = run_file(12).unwrap_err().to_string();
    assert!(error.contains("a number of ranks that divides the 12 of the run"), "{error}");
    let pipeline = r#"{"pipeline": {"stages": 2, "partition": "best"}}"#;
    assert_eq!(field("mesh", pipeline, None), "(pipeline: 2)");
    assert_eq!(
        field("mesh", r#"{"tensor_parallel": {"autotp_size": 1}, "sequence_parallel_size": 1}"#, None),
        ""
    );
    assert!(refused(r#"{"sequence_parallel_size": -2}"#, None).contains("a whole number from 0 to 1024"));
}

/// Those of Accelerate, Megatron-LM and torchtitan are training arguments.
#[test]
fn degrees_of_others_are_axes_too() {
    let mesh = |arguments: &str| {
        let file = if arguments.starts_with('{') { "args.json" } else { "llama3.toml" };
        let imported = Import::of_training_arguments(file, arguments).run();
        imported.map(|imported| {
            let lines = imported.run_file.lines().map(str::trim);
            let line = lines.filter_map(|line| line.strip_prefix("mesh: ")).next();
            let refused: Vec<_> = imported.may_change_the_result().map(|row| row.path.clone()).collect();
            (line.unwrap_or_default().trim_end_matches(',').to_string(), refused)
        })
    };
    let found = |arguments: &str| mesh(arguments).unwrap();
    let accelerate = r#"{"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 1, "tp_size": 2, "cp_size": 4,
        "sp_size": 1, "cp_backend": "torch", "cp_handler": {"cp_comm_strategy": "allgather"}}}"#;
    assert_eq!(found(accelerate), ("(tensor: 2, context: 4)".into(), vec![]));
    let sharded = r#"{"parallelism_config": {"dp_shard_size": 4, "tp_size": 2}}"#;
    assert_eq!(found(sharded), ("(tensor: 2)".into(), vec!["parallelism_config.dp_shard_size".into()]));
    let megatron = r#"{"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "sequence_parallel": true,
        "virtual_pipeline_model_parallel_size": 2, "context_parallel_size": 1}"#;
    assert_eq!(found(megatron), ("(tensor: 8, pipeline: 4, schedule: interleaved(2))".into(), vec![]));
    let torchtitan = |schedule| {
        format!(
            "[parallelism]\ntensor_parallel_degree = 1\npipeline_parallel_degree = 4\n\
             pipeline_parallel_schedule = \"{schedule}\"\ndata_parallel_shard_degree = 1\n"
        )
    };
    assert_eq!(found(&torchtitan("GPipe")).0, "(pipeline: 4, schedule: g_pipe)");
    assert_eq!(found(&torchtitan("1F1B")), ("(pipeline: 4)".into(), vec![]));
    let error = mesh(&torchtitan("ZBVZeroBubble")).unwrap_err().to_string();
    assert!(error.contains("\"Interleaved1F1B\""), "{error}");
    let differ =
        mesh(r#"{"tensor_model_parallel_size": 2, "parallelism_config": {"tp_size": 4}}"#).unwrap_err();
    assert!(differ.to_string().contains("4, as another field says of the same ranks"), "{differ}");
    // Both files say the same.
    let both =
        field("mesh", r#"{"sequence_parallel_size": 2}"#, Some(r#"{"parallelism_config": {"sp_size": 2}}"#));
    assert_eq!(both, "(context: 2)");
}

#[test]
fn ranks_that_are_asked_for_share_the_batch() {
    let config = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}"#;
    let run_file = Import::of("ds.json", config).ranks(8).run().unwrap().run_file;
    assert!(run_file.contains("    ranks: 8,\n") && run_file.contains("Accumulate(2)"), "{run_file}");
    assert_eq!(field("ranks", config, None), "1");
    for ranks in [0, 100_001, u64::MAX] {
        let error = Import::of("ds.json", config).ranks(ranks).run().unwrap_err();
        assert_eq!(error, ImportError::Ranks { ranks });
    }
    assert_eq!(field("ranks", r#"{"train_micro_batch_size_per_gpu": 4}"#, None), "");
}

/// The defaults of a version change nothing: all of them are known, with a ds_config and without.
#[test]
fn the_defaults_of_each_version_are_known() {
    let config = include_str!("../../tests/import/deepspeed_defaults/ds_config.json");
    let mut imports = vec![("DeepSpeed", Import::of("ds.json", config))];
    for (version, arguments) in [
        ("4.57", include_str!("../../tests/import/transformers_4_57/args.json")),
        ("5.24", include_str!("../../tests/import/transformers_5_24/args.json")),
    ] {
        imports.push((version, Import::of_training_arguments("args.json", arguments)));
        imports.push((version, Import::of("ds.json", "{}").training_arguments("args.json", arguments)));
    }
    for (version, import) in imports {
        let imported = import.run().unwrap();
        let changing: Vec<_> = imported.may_change_the_result().collect();
        assert!(changing.is_empty(), "{version}: {changing:#?}");
        assert!(imported.rows.len() > 60, "{version}: {} fields", imported.rows.len());
    }
}

/// Trainer's own precision, accumulation and clipping apply where there is no DeepSpeed.
#[test]
fn training_arguments_alone_are_a_run_of_trainer() {
    let lines = |arguments: &str| {
        let imported = Import::of_training_arguments("args.json", arguments).run().unwrap();
        assert!(imported.run_file.starts_with("// Made of args.json by"), "{}", imported.run_file);
        assert!(imported.rows.iter().all(|row| row.file == "args.json"));
        imported.run_file
    };
    let defaults = lines("{}");
    for line in
        ["Clip(norm: 1.0),", "batch: (micro: 8),", "epochs: 3,", "Linear(lr: 5e-5,", "weight_decay: 0.0)"]
    {
        assert!(defaults.contains(line), "{line}: {defaults}");
    }
    assert!(!defaults.contains("Amp") && !defaults.contains("Accumulate"), "{defaults}");
    let brain = lines(r#"{"bf16": true, "gradient_accumulation_steps": 4, "max_grad_norm": 0.5}"#);
    assert!(brain.contains("Amp(bf16),\n        Accumulate(4),\n        Clip(norm: 0.5),"), "{brain}");
    // Only DeepSpeed trains in the precision of the evaluation.
    let evaluated = r#"{"bf16": false, "bf16_full_eval": true, "fp16_full_eval": true}"#;
    assert!(!lines(evaluated).contains("Amp"), "{}", lines(evaluated));
    assert!(lines(r#"{"bf16_full_eval": true}"#).contains("Clip(norm: 1.0),"));
    // Torch's gradient scaler, whose settings are not DeepSpeed's.
    let half = lines(r#"{"fp16": true, "max_grad_norm": 0.0}"#);
    assert!(half.contains("Amp(dtype: f16") && half.contains("2000") && !half.contains("Clip"), "{half}");
    let both = Import::of_training_arguments("args.json", r#"{"fp16": true, "bf16": true}"#).run();
    assert!(both.unwrap_err().to_string().starts_with("args.json:1: `bf16` must be false where `fp16`"));
    for unsupported in [r#"{"deepspeed": "ds_config.json"}"#, r#"{"fsdp": "full_shard"}"#] {
        let imported = Import::of_training_arguments("args.json", unsupported).run().unwrap();
        assert_eq!(imported.may_change_the_result().count(), 1, "{unsupported}");
    }
}

#[test]
fn the_timescale_of_an_inverse_square_root_arrives() {
    let of = |kwargs: &str| {
        let args = format!(r#"{{"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 100{kwargs}}}"#);
        field("schedule", "{}", Some(&args))
    };
    assert_eq!(of(""), "InverseSqrt(lr: 5e-5, warmup: 100, from_zero: true)");
    assert_eq!(
        of(r#", "lr_scheduler_kwargs": {"timescale": 400}"#),
        "InverseSqrt(lr: 5e-5, timescale: 400, warmup: 100, from_zero: true)"
    );
}
