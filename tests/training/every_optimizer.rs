//! Every optimizer, for tests of what is around an update.

use firebrick::optim::BoxedOptimizer;

pub fn recipe(text: &str) -> BoxedOptimizer {
    serde_json::from_str(text).unwrap()
}

/// Calls a function for each optimizer, with one that builds the optimizer of a model.
macro_rules! every_optimizer {
    ($check:expr) => {
        every_optimizer!(
            $check;
            r#"{"AdamW": {}}"#,
            r#"{"AdamW8bit": {}}"#,
            r#"{"Lion": {}}"#,
            r#"{"Sgd": {}}"#,
            r#"{"Sgd": {"momentum": 0.9}}"#,
            r#"{"Adafactor": {}}"#,
            r#"{"Lamb": {}}"#,
            r#"{"Adagrad": {}}"#,
        )
    };
    ($check:expr; $($text:literal),* $(,)?) => {{
        let check: fn(fn(&firebrick_models::Gpt) -> firebrick::optim::ModelOptimizer) = $check;
        $(check(|model| {
            firebrick::optim::Groups::new().build(model, &*$crate::every_optimizer::recipe($text)).unwrap()
        });)*
    }};
}

pub(crate) use every_optimizer;
