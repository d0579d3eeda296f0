use super::*;

fn curve(values: &[f64]) -> Curve {
    let mut curve = Curve::default();
    values.iter().zip(1..).for_each(|(value, step)| curve.add(step, Some(*value)));
    curve
}

fn chart<'a>() -> Chart<'a> {
    Chart::new("loss", "Loss", Unit::Plain, (1.0, 3.0))
}

#[test]
fn a_chart_without_readings_is_left_out() {
    assert_eq!(chart().line("train", &Curve::default(), Look::First).html(), "");
}

#[test]
fn lines_go_from_edge_to_edge() {
    let html = chart().line("train", &curve(&[2.0, 1.0, 1.0]), Look::First).html();
    assert!(html.contains(r#"<path class="first" d="M0.0 0.0L500.0 1000.0L1000.0 1000.0"/>"#), "{html}");
    assert!(!html.contains("radio"), "{html}");
}

#[test]
fn a_wide_range_can_be_looked_at_both_ways() {
    let html = chart().line("train", &curve(&[1000.0, 10.0, 1.0]), Look::First).html();
    assert_eq!(html.matches("class=\"plot ").count(), 2);
    assert_eq!(html.matches("type=\"radio\"").count(), 2);
    assert!(html.contains("id=\"loss-log\" class=\"to-log\" checked"), "{html}");
    assert!(html.contains("class=\"plot linear\"") && html.contains("class=\"plot log\""), "{html}");
    // On the logarithmic plot, 10 is a third of the way from 1 to 1000; on the linear one it is near the bottom.
    assert!(html.contains("L500.0 658.") && html.contains("L500.0 990.0"), "{html}");
    let from_zero = chart().line("train", &curve(&[1000.0, 0.0]), Look::First).html();
    assert!(!from_zero.contains("radio"), "0 has no place on a logarithmic axis");
}

#[test]
fn a_chart_has_a_description_and_a_table() {
    let html = chart().line("validation", &curve(&[3.0, 1.0, 2.0]), Look::Evaluated).html();
    let words = "Loss over steps 1 to 3. validation: from 3.0000 at step 1 to 2.0000 at step 3; \
                 lowest 1.0000 at step 2, highest 3.0000 at step 1.";
    assert!(html.contains(words), "{html}");
    assert!(html.contains("<th scope=\"row\">2</th><td>1.0000</td>"), "{html}");
    assert!(html.contains("class=\"second dot\""), "{html}");
}

#[test]
fn a_chart_along_a_rate_has_it_on_its_axis() {
    let (loss, rate) = (curve(&[3.0, 1.0, 2.0]), curve(&[0.001, 0.002, 0.003]));
    let html = chart().line("training", &loss, Look::First).along("learning rate", &rate).html();
    let words = "Loss over learning rates 1.00e-3 to 3.00e-3. training: from 3.0000 at learning rate 1.00e-3";
    assert!(html.contains(words), "{html}");
    assert!(html.contains("<th scope=\"row\">2.00e-3</th><td>1.0000</td>"), "{html}");
    assert!(html.contains("aria-hidden=\"true\">learning rate</div>"), "{html}");
    assert!(html.contains("left:50.00%\">2.00e-3</span>"), "{html}");
    // Without rates, steps label the chart.
    let html = chart().line("training", &loss, Look::First).along("learning rate", &Curve::default()).html();
    assert!(html.contains("at step 3;") && html.contains(">step</div>"), "{html}");
}

#[test]
fn names_and_reasons_are_text() {
    let mark = [Mark { step: 2, reason: "\"><img src=x onerror=alert(1)>".into() }];
    let html = chart()
        .line("</script><script>alert(1)</script>", &curve(&[1.0, 2.0, 3.0]), Look::First)
        .marked("<b>skipped", "skip", &mark)
        .html();
    assert!(
        !html.contains("<img") && !html.contains("alert(1)</script>") && !html.contains("<b>skipped"),
        "{html}"
    );
    assert!(html.contains("left:50.00%\" title=\"step 2: &quot;&gt;&lt;img"), "{html}");
    assert_eq!(html.matches("</script>").count(), 1);
}

#[test]
fn a_noisy_curve_is_drawn_faint_behind_its_mean() {
    let values: Vec<f64> = (0..200).map(|step| f64::from(step % 3)).collect();
    let html = chart().noisy("train", &curve(&values)).html();
    let (faint, smooth) =
        (html.find("<path class=\"faint\"").unwrap(), html.find("<path class=\"first\"").unwrap());
    assert!(faint < smooth);
    assert!(html.contains("smoothed over \u{b1}3 steps"), "{html}");
}
