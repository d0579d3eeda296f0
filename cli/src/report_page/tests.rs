use firebrick::observe::timeline::RankTimeline;

use super::*;

const TRAIN: &str = r#"{"kind":"train","step":1,"loss":4.0,"learning_rate":0.1,"gradient_norm":1.0,"items":1,"tokens":9,"seconds":0.5,"tokens_per_second":18.0,"peak_bytes":1000}"#;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

fn page(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    fs::read_to_string(write(folder.path(), &[]).unwrap()).unwrap()
}

#[test]
fn a_run_in_progress_has_a_page_that_says_so() {
    let html = page(&[("metrics.jsonl", &format!("{TRAIN}\n{{\"kind\":\"train\",\"st"))]);
    assert!(html.contains("In progress, or cut off") && html.contains("reaches step 1."), "{html}");
    assert!(html.contains("cut short"), "{html}");
    let html = page(&[("metrics.jsonl", "")]);
    assert!(html.contains("No step is made yet"), "{html}");
}

#[test]
fn a_finished_run_says_why_it_ended() {
    let log = ("metrics.jsonl", TRAIN);
    assert!(page(&[log, ("report.json", r#"{"steps":1,"stopped":null}"#)]).contains("Finished"));
    let html = page(&[log, ("report.json", r#"{"steps":1,"stopped":"no <better> loss"}"#)]);
    assert!(html.contains("Stopped early</strong> no &lt;better&gt; loss"), "{html}");
    let html = page(&[log, ("report.json", "{")]);
    assert!(html.contains("report.json is not a report") && html.contains("In progress"), "{html}");
}

#[test]
fn the_report_of_an_earlier_part_is_not_that_of_the_run() {
    let folder = folder(&[("report.json", r#"{"steps":7,"train_loss":9.5}"#), ("metrics.jsonl", TRAIN)]);
    let log = File::options().append(true).open(folder.path().join("metrics.jsonl")).unwrap();
    log.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
    let html = fs::read_to_string(write(folder.path(), &[]).unwrap()).unwrap();
    assert!(html.contains("In progress") && !html.contains("9.5000"), "{html}");
}

#[test]
fn a_range_test_is_shown_by_its_rates() {
    let log = format!("{TRAIN}\n{}\n", TRAIN.replace("\"step\":1", "\"step\":2").replace("0.1", "0.25"));
    let of =
        |schedule: &str| page(&[("metrics.jsonl", &log), ("run.ron", &format!("(schedule: {schedule})"))]);
    let html = of("LrRangeTest()");
    assert!(html.contains("Loss by learning rate over learning rates 1.00e-1 to 2.50e-1."), "{html}");
    assert!(!of("Constant(lr: 0.1)").contains("range-test"));
}

#[test]
fn the_timelines_of_the_last_steps_are_drawn() {
    let timeline = |step| StepTimeline { step, ranks: vec![RankTimeline::default(); 2] }.to_chrome();
    let files: Vec<_> = (8..14).map(|step| (file_name(step), timeline(step))).collect();
    let mut all = vec![("metrics.jsonl", TRAIN), ("timeline-20.json", "{"), ("timeline-x.json", "{")];
    all.extend(files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let html = page(&all);
    for (step, is_drawn) in [(10, false), (11, true), (13, true)] {
        assert_eq!(html.contains(&format!("<figcaption>Step {step} ")), is_drawn, "{html}");
    }
    assert!(html.contains("timeline-20.json is not a timeline") && !html.contains("timeline-x"), "{html}");
    assert!(!page(&[("metrics.jsonl", TRAIN)]).contains("Timelines"));
}

#[test]
fn unknown_lines_are_counted() {
    let log = format!("{TRAIN}\n{{\"kind\":\"moon\"}}\nnothing\n{TRAIN}\n");
    assert!(page(&[("metrics.jsonl", &log)]).contains("2 lines of metrics.jsonl"));
}

#[test]
fn no_text_of_a_run_is_markup() {
    let evil = "</script></style></title></pre><img src=x onerror=alert(1)>";
    let quoted = serde_json::to_string(evil).unwrap();
    let log = format!(
        "{TRAIN}\n\
         {{\"kind\":\"train\",\"step\":2,\"loss\":1.0,\"skipped\":{quoted}}}\n\
         {{\"kind\":\"valid\",\"step\":2,\"loss\":1.0,\"scores\":{{{quoted}:0.5}}}}\n\
         {{\"kind\":\"checkpoint\",\"step\":2,\"error\":{quoted}}}\n"
    );
    let predictions = format!(
        "{{\"text\":{quoted},\"predicted\":{quoted},\"expected\":1}}\n\
         {{\"tokens\":[{quoted}],\"predicted\":[{quoted}],\"expected\":[1]}}\n"
    );
    let report = format!(
        "{{\"steps\":2,\"stopped\":{quoted},\"checkpoint_error\":{quoted},\"valid_scores\":{{{quoted}:1.0}},\
           \"failed_writes\":[{{\"file\":{quoted},\"failures\":3,\"error\":{quoted}}},{{\"file\":\"log\"}}]}}"
    );
    let folder = folder(&[
        ("metrics.jsonl", &log),
        ("predictions.jsonl", &predictions),
        ("report.json", &report),
        ("run.ron", evil),
        ("sample.txt", evil),
    ]);
    let versions = [(evil.to_string(), evil.to_string())];
    let html = fs::read_to_string(write(folder.path(), &versions).unwrap()).unwrap();
    assert!(!html.contains("<img"), "{html}");
    assert!(html.matches("&lt;img").count() > 10);
    assert!(
        html.contains("is not complete: 3 attempts")
            && html.contains("to write log failed; nothing is missing")
    );
    // The page's own scripts: one for each chart's data, and the readout's.
    let charts = html.matches("<figure").count();
    assert_eq!(html.matches("</script>").count(), charts + 1);
    assert_eq!([html.matches("</style>").count(), html.matches("</title>").count()], [1, 1]);
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let html = page(&[("metrics.jsonl", TRAIN), ("run.ron", "()"), ("sample.txt", "words")]);
    for reference in ["http://", "https://", "url(", "@import", "src=\"", "href="] {
        assert!(!html.contains(reference), "{reference}");
    }
    assert!(
        html.contains("default-src 'none'")
            && html.contains("<pre class=\"wraps\" tabindex=\"0\">words</pre>")
    );
}

#[test]
fn the_page_replaces_an_earlier_one_and_leaves_nothing_else() {
    let folder = folder(&[("metrics.jsonl", TRAIN), ("report.html", "earlier")]);
    let path = write(folder.path(), &[("firebrick".into(), "1.2.3".into())]).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("<td>1.2.3</td>"));
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["metrics.jsonl", "report.html"]);
}

#[test]
fn a_folder_without_a_run_is_refused() {
    let folder = folder(&[]);
    let error = write(folder.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl") && error.contains("output folder"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(write(&file, &[]), Err(ReportPageError::Read { .. })));
}

#[test]
fn a_page_that_cannot_be_put_in_place_leaves_nothing() {
    let folder = folder(&[("metrics.jsonl", TRAIN)]);
    fs::create_dir(folder.path().join("report.html")).unwrap();
    assert!(matches!(write(folder.path(), &[]), Err(ReportPageError::Write { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]
    #[test]
    fn whatever_the_numbers_are_every_point_has_a_place(
        values in proptest::collection::vec((proptest::num::u64::ANY, proptest::num::f64::ANY), 1..40),
        tail in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut log: Vec<u8> = Vec::new();
        for (step, value) in values {
            let line = serde_json::json!({
                "kind": "train", "step": step, "loss": value, "gradient_norm": value.abs(), "seconds": value,
                "tokens_per_second": value, "memory_bytes": step, "peak_bytes": step, "waited_seconds": value,
            });
            let valid = serde_json::json!({"kind": "valid", "step": step, "loss": value, "scores": {"f1": value}});
            log.extend(format!("{line}\n{valid}\n").bytes());
        }
        log.extend(tail);
        fs::write(folder.path().join("metrics.jsonl"), log).unwrap();
        let html = fs::read_to_string(write(folder.path(), &[]).unwrap()).unwrap();
        let styles = html.split("style=\"").skip(1);
        let paths = html.split(" d=\"").skip(1);
        for place in styles.chain(paths).filter_map(|rest| rest.split('"').next()) {
            proptest::prop_assert!(!place.contains("NaN") && !place.contains("inf"), "{place}");
        }
    }
}
