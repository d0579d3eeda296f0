//! All kernels have a check, and a check finds what is wrong.

use std::fs;
use std::path::Path;
use std::time::Duration;

use burn::tensor::{Device, FloatDType, Tensor};

use super::run::Run;
use super::{Check, Tolerance, Verdict, all, run};
use crate::off::{Kernel, VARIABLE};
use crate::optim::{Parts, equations::Sgd, step};
use crate::{attends_in_tiles, testing};

const LIMIT: Duration = Duration::from_secs(300);

fn source(path: &str) -> String {
    fs::read_to_string(Path::new("src").join(path)).unwrap()
}

/// What the crate exports besides kernels: arguments, traits over backends, and functions that compute nothing.
const NO_KERNELS: [&str; 40] = [
    "Attending",
    // On the CPU alone.
    "AttentionInParts",
    "AttentionSoFar",
    "Draws",
    "DropMask",
    "DropoutOps",
    "EmbeddingOps",
    "Fp8",
    "Fp8Ops",
    "Fp8Products",
    "Gate",
    "GatedOps",
    "Gelu",
    "GeluOps",
    "HalfOps",
    "Head",
    "HeadWeight",
    "IGNORED",
    "LossOps",
    "LossRows",
    "ManyOps",
    "NormKind",
    "NormOps",
    "NormRows",
    "ProductOps",
    "Ragged",
    "Reads",
    "ResidualOps",
    "RotaryOps",
    "Samples",
    "Site",
    "attends_in_tiles",
    // What the backward pass of `linear` computes, whose check covers it.
    "linear_gradients",
    "product_library",
    "rows_of_logits",
    "settle_products",
    "with_read_products",
    "with_share_of_classes",
    "with_unread_products",
    "with_zero_results",
];

/// The names that `pub use` exports in a source.
fn exported(source: &str) -> Vec<String> {
    let uses = source.split("\npub use ").skip(1).filter_map(|rest| rest.split_once(';'));
    let names = uses.flat_map(|(path, _)| {
        let names = path.rsplit("::").next().unwrap_or(path).trim_matches(['{', '}', '\n', ' ']);
        names.split(',').map(|name| name.trim().to_string()).collect::<Vec<_>>()
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_public_kernel_has_a_check() {
    let checks = all();
    let covers: Vec<_> = checks.iter().flat_map(|check| check.covers().to_vec()).collect();
    let mut kernels = exported(&source("lib.rs"));
    assert!(kernels.contains(&"attention".into()) && kernels.contains(&"rotary".into()), "{kernels:?}");
    kernels.retain(|name| !NO_KERNELS.contains(&&**name));
    kernels.extend(["Together", "PackedMatrix"].map(String::from));
    let equations = source("optim/equations.rs");
    let rules = equations.split("\nimpl Rule<").skip(1).filter_map(|rest| rest.split_once("for "));
    let rules: Vec<_> = rules.filter_map(|(_, rest)| rest.split_whitespace().next()).collect();
    assert!(rules.contains(&"AdamW") && rules.len() >= 5, "{rules:?}");
    kernels.extend(rules.into_iter().map(String::from));
    for kernel in kernels {
        let advice = "add a check to kernels/src/check/, or the name to `NO_KERNELS`";
        assert!(covers.contains(&&*kernel), "no check covers `{kernel}`: {advice}");
    }
}

/// Folders of kernels that are compiled for a device, and what turns them off.
const FOLDERS: [(&str, Kernel); 11] = [
    ("attention", Kernel::Attention),
    ("cube", Kernel::Products),
    ("dropout", Kernel::Dropout),
    ("embedding", Kernel::Embedding),
    ("fp8", Kernel::Products),
    ("gelu", Kernel::Activations),
    ("loss", Kernel::Losses),
    ("many", Kernel::Many),
    ("norm", Kernel::Norms),
    ("optim", Kernel::Updates),
    ("rotary", Kernel::Rotary),
];

#[test]
fn every_kernel_of_a_device_can_be_turned_off_and_has_a_check() {
    fn launched(folder: &Path) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            let is_source = path.extension().is_some_and(|end| end == "rs");
            match path.is_dir() {
                true => launched(&path),
                false => is_source && fs::read_to_string(&path).unwrap().contains("#[cube(launch"),
            }
        })
    }
    let source = Path::new("src");
    let checks = all();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // This file has the words that are looked for.
        let has_kernels = match path.is_dir() {
            true => name != "check" && launched(&path),
            false => fs::read_to_string(&path).unwrap().contains("#[cube(launch"),
        };
        if has_kernels {
            let known = FOLDERS.iter().find(|(folder, _)| *folder == name);
            let (_, kernel) = known.unwrap_or_else(|| panic!("`{name}` has kernels: name it in `FOLDERS`"));
            assert!(checks.iter().any(|check| check.kernel == Some(*kernel)), "no check of {kernel:?}");
        }
    }
    for kernel in Kernel::ALL {
        assert!(checks.iter().any(|check| check.kernel == Some(kernel)), "no check of {kernel:?}");
    }
}

#[test]
fn all_kernels_are_right_on_small_shapes() {
    let mut checks = all();
    checks.iter_mut().for_each(|check| check.real = None);
    for checked in run(checks, &testing::device(), LIMIT, |_| ()) {
        let is_right = matches!(checked.verdict, Verdict::Right | Verdict::NotOffered);
        assert!(is_right, "{checked:?}");
        assert_eq!((checked.real, checked.speed), (None, None));
    }
}

/// A result that is the same number everywhere would hide a kernel that reads the wrong element.
#[test]
fn results_of_checks_differ_from_element_to_element() {
    for check in all() {
        let mut reference = Run::new(&Device::flex(), FloatDType::F64, false, false);
        (check.small)(&mut reference);
        for output in reference.finish() {
            assert!(output.differs(), "{}: {output:?}", check.name);
        }
    }
}

/// A function whose device adds `by` to one element.
fn perturbed(by: f64) -> Check {
    Check::new("doubled", &[], Tolerance::ROUNDED, move |run| {
        let x = run.leaf("x", [3, 5]);
        let mut y = x * 2.0;
        if !run.is_reference() {
            let element = y.clone().narrow(0, 1, 1).narrow(1, 3, 1) + by;
            y = y.slice_assign([1..2, 3..4], element);
        }
        run.result("twice x", y);
    })
}

#[test]
fn a_wrong_element_is_found() {
    let device = testing::device();
    for checked in run(vec![perturbed(0.5)], &device, LIMIT, |_| ()) {
        match checked.verdict {
            Verdict::NotOffered => {}
            Verdict::Wrong(most) => {
                assert_eq!((&*most.of, &*most.shape, most.element), ("twice x", &[3, 5][..], 8));
                assert!((most.found - most.expected - 0.5).abs() < 0.02, "{most:?}");
                assert!(most.error > 0.2 && checked.error == Some(most.error), "{most:?}");
            }
            verdict => panic!("{verdict:?}"),
        }
    }
    assert_eq!(run(vec![perturbed(0.0)], &device, LIMIT, |_| ())[0].verdict, Verdict::Right);
}

#[test]
fn a_wrong_gradient_is_found() {
    let check = Check::new("doubled", &[], Tolerance::ROUNDED, |run| {
        let x = run.leaf("x", [3, 5]);
        let y = if run.is_reference() { x.clone() * 2.0 } else { x.clone() + x.detach() };
        run.result("twice x", y);
    });
    let checked = run(vec![check], &testing::device(), LIMIT, |_| ()).remove(0);
    let Verdict::Wrong(most) = checked.verdict else { panic!("{checked:?}") };
    assert_eq!(most.of, "the gradient of x");
}

#[test]
fn a_panic_is_a_failure_of_its_check_only() {
    let panics = Check::new("panics", &[], Tolerance::ROUNDED, |run| {
        assert!(run.is_reference(), "the driver has crashed");
        let x = run.leaf("x", [2]);
        run.result("x", x);
    });
    let found = run(vec![panics, perturbed(0.0)], &testing::device(), LIMIT, |_| ());
    assert!(matches!(&found[0].verdict, Verdict::Failed(reason) if reason.contains("crashed")));
    assert_eq!(found[3].verdict, Verdict::Right);
}

#[test]
fn what_the_time_does_not_reach_is_told_apart() {
    let slow = Check::new("slow", &[], Tolerance::ROUNDED, |_| std::thread::sleep(Duration::from_secs(600)));
    let mut told = Vec::new();
    let limit = Duration::from_millis(300);
    let found = run(vec![slow, perturbed(0.0)], &Device::flex(), limit, |line| told.push(line.to_string()));
    assert!(matches!(found[0].verdict, Verdict::Unfinished(time) if time >= Duration::from_millis(100)));
    assert!(found[1..].iter().all(|checked| checked.verdict == Verdict::NotReached));
    assert_eq!(told, ["slow"]);
}

#[test]
fn a_shape_of_a_model_is_timed() {
    let check = perturbed(0.0).real(|run| {
        let x = run.leaf("x", [64, 100]);
        run.operations(2 * 64 * 100);
        run.result("twice x", x * 2.0);
    });
    let checked = run(vec![check], &testing::device(), LIMIT, |_| ()).remove(0);
    assert_eq!((checked.verdict, checked.real), (Verdict::Right, Some(true)));
    assert!(matches!(checked.speed, Some(super::Speed::Operations(speed)) if speed > 0.0));
}

/// In a process of its own, since a process reads the variable once.
#[test]
fn what_is_off_is_computed_by_burn_and_right() {
    if std::env::var_os(VARIABLE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "check::tests::what_is_off_is_computed_by_burn_and_right", "--nocapture"]);
        let output = alone.env(VARIABLE, "all").output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    assert!(!attends_in_tiles(&Device::flex(), FloatDType::F32));
    let device = testing::device();
    let [param, grad] = [1.0, 2.0].map(|x| Tensor::<1>::full([4], x, &device));
    assert!(step(&Sgd { weight_decay: 0.0, rate: 0.1 }, Parts { param, grad, moments: Some([]) }).is_err());
    let mut checks = all();
    checks.iter_mut().for_each(|check| check.real = None);
    for checked in run(checks, &device, LIMIT, |_| ()) {
        assert_eq!(checked.is_off, checked.kernel.is_some(), "{checked:?}");
        let is_right = match checked.kernel {
            Some(Kernel::Updates) => matches!(checked.verdict, Verdict::Off | Verdict::NotOffered),
            _ => matches!(checked.verdict, Verdict::Right | Verdict::NotOffered),
        };
        assert!(is_right, "{checked:?}");
    }
}
