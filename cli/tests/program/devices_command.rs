//! `firebrick devices`, and runs on the devices that it lists.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

use crate::command_line::{firebrick, folder};

#[test]
fn devices_that_are_not_there_say_which_are() {
    let folder = folder();
    if !cfg!(feature = "cuda") {
        let said = contains("built without cuda").and(contains("it has")).and(contains("--features cuda"));
        firebrick(folder.path()).args(["--device", "cuda"]).assert().code(1).stderr(said);
    }
    firebrick(folder.path())
        .env("BURN_DEVICE", "tpu")
        .assert()
        .code(1)
        .stderr(contains("unknown device \"tpu\""));
    firebrick(folder.path()).args(["--device", "cpu"]).assert().success();
}

/// Burn asks for its default device when it loads an optimizer's state, and has other names in the same variable.
#[test]
fn a_run_goes_on_where_the_variable_names_its_device() {
    let folder = folder();
    for (device, steps) in
        [("cpu:0", "steps=2"), ("cpu", "steps=3"), ("auto", "steps=4"), ("flex", "steps=5")]
    {
        let mut command = firebrick(folder.path());
        command.env("BURN_DEVICE", device).args(["--resume", "auto", "--set", steps]).assert().success();
    }
}

#[test]
fn devices_are_listed_with_what_they_can_do() {
    let list = |report: &[&str]| {
        let mut command = Command::cargo_bin("firebrick").unwrap();
        let assert = command.arg("devices").args(report).assert().success();
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    let text = list(&[]);
    for line in ["device  auto", "cpu:0", "bf16        16         8         7", "65504", "not in Burn"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let listing: serde_json::Value = serde_json::from_str(&list(&["--report", "json"])).unwrap();
    let devices = listing["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|device| device["name"] == "cpu:0").unwrap();
    assert_eq!(cpu["usage"]["bf16"], serde_json::json!(["storage", "arithmetic"]));
    assert_eq!(cpu["usage"]["fp6 e3m2"], serde_json::json!([]));
    assert_eq!(devices.iter().filter(|device| device["auto"] == true).count(), 1);
    let formats = listing["formats"].as_array().unwrap();
    let e4m3 = formats.iter().find(|format| format["name"] == "fp8 e4m3").unwrap();
    assert_eq!((&e4m3["largest"], &e4m3["in_burn"]), (&448.0.into(), &"quantized".into()));
    // `--device` takes every name in the list.
    let folder = folder();
    for device in devices.iter().filter(|device| device["usage"].is_object()) {
        let name = device["name"].as_str().unwrap();
        firebrick(folder.path()).args(["--device", name, "--set", "steps=2"]).assert().success();
    }
}

/// Training on a device agrees with what `firebrick devices` says of it.
#[test]
fn a_dtype_that_the_device_lacks_is_refused_with_those_it_has() {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let output = command.args(["devices", "--report", "json"]).assert().success().get_output().stdout.clone();
    let listing: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into()).replace("flex", "cpu");
    let devices = listing["devices"].as_array().unwrap();
    let of_tests = |name: &str| devices.iter().find(|device| device["name"] == name);
    let device = of_tests(&name).or(of_tests(&format!("{name}:0"))).unwrap();
    let computes = device["usage"]["bf16"].as_array().unwrap().contains(&"arithmetic".into());

    let folder = folder();
    let mut command = firebrick(folder.path());
    let assert = command.args(["--device", &name, "--set", "strategies=[Amp(bf16)]"]).assert();
    match computes {
        true => assert.success(),
        false => assert.code(1).stderr(contains("cannot compute in bf16; it can in").and(contains("f32"))),
    };
}

/// The kernels of the CPU are right, each is listed in each dtype, and a row that was not reached in time says so.
#[test]
fn kernels_are_checked() {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into()).replace("flex", "cpu");
    let assert = command.args(["devices", "--check", &name, "--limit", "30", "--report", "json"]).assert();
    let output = assert.success().stderr(contains("checking attention, grouped heads")).get_output().clone();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kernels = report["kernels"].as_array().unwrap();
    for dtype in ["f32", "f16", "bf16"] {
        let of_dtype = kernels.iter().filter(|kernel| kernel["dtype"] == dtype);
        assert!(of_dtype.count() > 20, "{report}");
    }
    let unreached = kernels.iter().filter(|kernel| kernel["is_unreached"] == true).count();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.contains(&format!("warning: {unreached} of")), unreached > 0, "{said}");
    let first = &kernels[0];
    assert!(first["verdict"].as_str().unwrap().starts_with("right"), "{first}");
    assert!(first["largest_relative_error"].as_f64().unwrap() <= first["tolerance"].as_f64().unwrap());
}

/// With all kernels off, Burn's operations train the same model.
#[test]
fn kernels_that_are_off_change_speed_alone() {
    let losses = |off: &str| {
        let folder = folder();
        let mut command = firebrick(folder.path());
        command.env("FIREBRICK_KERNELS_OFF", off).args(["--report", "json"]);
        let output = command.assert().success().get_output().clone();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains("FIREBRICK_KERNELS_OFF="), !off.is_empty(), "{said}");
        report["valid_loss"].as_f64().unwrap()
    };
    let (with, without) = (losses(""), losses("all"));
    assert!((with - without).abs() < 1e-4 * with.abs(), "{with} {without}");

    let folder = folder();
    let mut command = firebrick(folder.path());
    let said = contains("there is no kernel \"atention\"").and(contains("attention, casts"));
    command.env("FIREBRICK_KERNELS_OFF", "atention").assert().code(1).stderr(said);
}
