//! Reads `fp16`, `bf16`, `fp8` and `torch_autocast` as `Amp`.

use super::draft::Item;
use super::inputs::{Inputs, shown};
use super::source::{Setting, Source};
use super::zero::dtype_of;
use super::{ImportError, Outcome};

/// Whether a precision is on.
#[derive(Clone, Copy, PartialEq)]
enum Enabled {
    No,
    Yes,
    /// The file says "auto", and there are no training arguments.
    Open,
}

/// Reads `Amp`, unless everything is computed in f32.
///
/// # Errors
///
/// A setting is invalid, both precisions are on, or the files contradict each other.
pub(super) fn read(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let bf16_path = if inputs.ds.has_below("bf16") { "bf16" } else { "bfloat16" };
    let fp16 = enabled(inputs, "fp16", &["fp16", "fp16_full_eval"])?;
    let bf16 = enabled(inputs, bf16_path, &["bf16", "bf16_full_eval"])?;
    if in_fp8(inputs)? {
        return match fp16 {
            Enabled::Yes => {
                let source = inputs.args.as_ref().filter(|_| inputs.alone).unwrap_or(&inputs.ds);
                let path = if inputs.alone { "fp16" } else { "fp16.enabled" };
                Err(source.wrong(path, "false where products are in 8 bits: the rest is then in bf16"))
            }
            _ => {
                let (note, path) = (Outcome::taken("strategies: Amp(fp8)"), format!("{bf16_path}.enabled"));
                inputs.ds.correct(&path, note.clone());
                if let Some(args) = &mut inputs.args {
                    args.correct("bf16", note);
                }
                Ok(Some(Item::certain("Amp(fp8)")))
            }
        };
    }
    Ok(match (fp16, bf16) {
        (Enabled::Yes, Enabled::Yes) => {
            if let Some(args) = inputs.args.as_ref().filter(|_| inputs.alone) {
                return Err(args.wrong("bf16", "false where `fp16` is true: a run computes in one of them"));
            }
            let path = format!("{bf16_path}.enabled");
            return Err(inputs
                .ds
                .wrong(&path, "false where `fp16.enabled` is true: a run computes in one of them"));
        }
        (_, Enabled::Yes) => Some(brain_float(inputs, bf16_path)?),
        (Enabled::Yes, _) => Some(half(inputs)?),
        (_, Enabled::Open) => Some(brain_float(inputs, bf16_path)?.left_open_if(true)),
        (Enabled::Open, Enabled::No) => Some(half(inputs)?.left_open_if(true)),
        (Enabled::No, Enabled::No) => autocast(inputs)?,
    })
}

/// Reads whether linear layers multiply in 8 bits: `fp8` of the ds_config, in the words of Transformer Engine's recipes, or
/// `mixed_precision` with `fp8_config`, as Accelerate has them, among the training arguments.
///
/// # Errors
///
/// A setting is invalid.
fn in_fp8(inputs: &mut Inputs) -> Result<bool, ImportError> {
    let mut on = inputs.ds.flag("fp8.enabled")? == Setting::Is(true);
    if on {
        inputs.ds.settle("fp8.enabled", Outcome::taken("strategies: Amp(fp8)"));
        of_recipe(&mut inputs.ds, "fp8")?;
    }
    let Some(args) = &mut inputs.args else { return Ok(on) };
    match args.text("mixed_precision")? {
        Setting::Is(precision) if precision == "fp8" => {
            args.settle("mixed_precision", Outcome::taken("strategies: Amp(fp8)"));
            of_recipe(args, "fp8_config")?;
            on = true;
        }
        Setting::Is(precision) if ["bf16", "fp16"].contains(&precision.as_str()) => {
            let outcome = match args.flag(&precision)? {
                Setting::Is(true) => Outcome::no_effect(format!("`{precision}` says the same")),
                _ => Outcome::refused(format!("`{precision}: true`")),
            };
            args.settle("mixed_precision", outcome);
        }
        Setting::Is(precision) if precision != "no" => {
            return Err(args.wrong("mixed_precision", "\"no\", \"fp16\", \"bf16\" or \"fp8\""));
        }
        _ => (),
    }
    Ok(on)
}

/// Reads the settings of a recipe. Those that `Amp(fp8)` fixes must have the value that it uses.
///
/// # Errors
///
/// A setting is invalid.
fn of_recipe(source: &mut Source, block: &str) -> Result<(), ImportError> {
    let path = |name: &str| format!("{block}.{name}");
    for name in ["fp8_format", "format"].map(path) {
        match source.text(&name)? {
            Setting::Is(format) if format.eq_ignore_ascii_case("hybrid") => {
                source.settle(&name, Outcome::taken("strategies: Amp(fp8)"));
            }
            Setting::Is(format) if format.eq_ignore_ascii_case("e4m3") => {
                source.settle(&name, Outcome::refused("E4M3 in the forward pass and E5M2 for gradients"));
            }
            Setting::Is(_) => return Err(source.wrong(&name, "\"HYBRID\" or \"E4M3\"")),
            _ => (),
        }
    }
    let margin = path("margin");
    match source.number(&margin, "a number", |_| true)? {
        Setting::Is(0.0) => source.settle(&margin, Outcome::no_effect("scales reach the largest number")),
        Setting::Is(_) => source.settle(&margin, Outcome::refused("scales that reach the largest number")),
        _ => (),
    }
    Ok(())
}

/// Reads whether a precision is on: by the ds_config, by its "auto", or by a training argument alone, which Accelerate
/// then adds to the ds_config.
fn enabled(inputs: &mut Inputs, block: &str, arguments: &[&'static str; 2]) -> Result<Enabled, ImportError> {
    let path = format!("{block}.enabled");
    let argument = argued(inputs, arguments)?;
    let given = inputs.ds.flag(&path)?;
    let dtype = if block == "fp16" { "f16" } else { "bf16" };
    let to = |on: bool| {
        if on { format!("strategies: Amp({dtype})") } else { format!("no Amp({dtype}) in `strategies`") }
    };
    let on = match (given, argument) {
        (Setting::Is(on), Some(Some(other))) if on != other => return Err(inputs.differ(&path, arguments[0])),
        (Setting::Is(on), _) => on,
        (Setting::Auto, Some(other)) => other.unwrap_or(false),
        (Setting::Missing, Some(Some(other))) if !inputs.ds.has_below(block) => other,
        (Setting::Missing, _) => false,
        (Setting::Auto, None) => {
            let note =
                format!("strategies: Amp({dtype}); Transformers' default of `{}` is false", arguments[0]);
            inputs.ds.settle(&path, Outcome::FillIn(note));
            return Ok(Enabled::Open);
        }
    };
    inputs.ds.settle(&path, Outcome::taken(to(on)));
    let deciding = if inputs.alone { &arguments[..1] } else { &arguments[..] };
    for argument in deciding {
        inputs.settle_argument(argument, Outcome::taken(to(on)));
    }
    Ok(if on { Enabled::Yes } else { Enabled::No })
}

/// Reads the training arguments: `None` if there are none, and `Some(None)` if they do not decide.
fn argued(inputs: &Inputs, arguments: &[&'static str; 2]) -> Result<Option<Option<bool>>, ImportError> {
    let Some(args) = &inputs.args else { return Ok(None) };
    let training = args.flag(arguments[0])?;
    // Trainer turns DeepSpeed's half precision on to evaluate in it. Without DeepSpeed, it trains as before.
    let evaluation = if inputs.alone { Setting::Missing } else { args.flag(arguments[1])? };
    Ok(Some(match (training, evaluation) {
        (Setting::Is(training), evaluation) => Some(training || evaluation == Setting::Is(true)),
        (_, Setting::Is(true)) => Some(true),
        _ => None,
    }))
}

fn brain_float(inputs: &mut Inputs, block: &str) -> Result<Item, ImportError> {
    let ds = &mut inputs.ds;
    let [master, moments] =
        ["bf16_master_weights_and_grads", "bf16_optimizer_states"].map(|name| format!("{block}.{name}"));
    let pure = [ds.flag(&master)?, ds.flag(&moments)?];
    let text = if pure == [Setting::Is(true); 2] { "Amp(pure_bf16)" } else { "Amp(bf16)" };
    if pure == [Setting::Is(true); 2] {
        ds.correct(&format!("{block}.enabled"), Outcome::Taken(format!("strategies: {text}")));
    }
    if pure[0] == Setting::Is(true) {
        let moments_in_f32 =
            "master weights in f32, or bf16_optimizer_states too, which makes it `Amp(pure_bf16)`";
        let outcome = match pure[1] {
            Setting::Is(true) => Outcome::taken("strategies: Amp(pure_bf16)"),
            _ => Outcome::refused(moments_in_f32),
        };
        ds.settle(&master, outcome.clone());
        ds.settle(&moments, outcome);
    }
    let f32 = Outcome::no_effect("master weights, gradients' sums and moments are in f32");
    ds.settle(&master, f32.clone());
    ds.settle(&moments, f32);
    Ok(Item::certain(text))
}

fn half(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let ds = &mut inputs.ds;
    let master = "fp16.fp16_master_weights_and_grads";
    let in_f32 = match ds.flag(master)? {
        Setting::Is(true) => Outcome::refused("master weights in f32, or `Amp(pure_bf16)`, which has none"),
        _ => Outcome::no_effect("master weights are in f32"),
    };
    ds.settle(master, in_f32);
    let scale = loss_scale(ds)?;
    Ok(Item::certain(format!("Amp(dtype: f16, loss_scale: ({scale}))")))
}

/// Reads the loss scale as its settings here.
///
/// # Errors
///
/// A setting is out of range.
fn loss_scale(ds: &mut Source) -> Result<String, ImportError> {
    const CONSTANT: &str = "fp16.loss_scale";
    let largest = 2f64.powi(126);
    let constant =
        ds.number(CONSTANT, "0 or a scale of at most 2^126", |scale| (0.0..=largest).contains(&scale))?;
    let to = |scale: &f64| match *scale {
        0.0 => "a loss scale that moves".into(),
        scale => format!("Amp(loss_scale: (constant: {}))", shown(scale)),
    };
    if let Some(constant) = ds.taken(CONSTANT, constant, to)?.filter(|constant| *constant != 0.0) {
        for name in [
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "min_loss_scale",
            "consecutive_hysteresis",
        ] {
            ds.settle(&format!("fp16.{name}"), Outcome::no_effect("the loss scale is constant"));
        }
        return Ok(format!("constant: {}", shown(constant)));
    }
    let path = |name: &str| format!("fp16.{name}");
    let count = |ds: &mut Source, name: &str, least, most, default| {
        let count = ds.count(&path(name), least, most)?;
        Ok::<_, ImportError>(ds.taken(&path(name), count, u64::to_string)?.unwrap_or(default))
    };
    let initial = 2f64.powi(count(ds, "initial_scale_power", 0, 126, 16)? as i32);
    let interval = count(ds, "loss_scale_window", 1, u64::MAX, 1000)?;
    let hysteresis = count(ds, "hysteresis", 1, u64::MAX, 2)?;
    let range = format!("above 0 and at most the first loss scale, which is {}", shown(initial));
    let minimum = path("min_loss_scale");
    let least = ds.number(&minimum, &range, |scale| scale > 0.0 && scale <= initial)?;
    let least = ds.taken(&minimum, least, |least| shown(*least))?.unwrap_or(1.0);
    let settings = [
        ("initial_scale_power", "initial", shown(initial)),
        ("loss_scale_window", "interval", interval.to_string()),
        ("hysteresis", "hysteresis", hysteresis.to_string()),
        ("min_loss_scale", "minimum", shown(least)),
    ];
    let settings = settings.map(|(name, here, value)| {
        let setting = format!("{here}: {value}");
        ds.correct(&path(name), Outcome::Taken(format!("Amp(loss_scale: ({setting}))")));
        setting
    });
    let consecutive = path("consecutive_hysteresis");
    let refill = match ds.flag(&consecutive)? {
        Setting::Is(true) => Outcome::refused(
            "tolerated overflows that are counted from the last growth, not from the last good update",
        ),
        _ => Outcome::no_effect("tolerated overflows are counted from the last growth"),
    };
    ds.settle(&consecutive, refill);
    Ok(settings.join(", "))
}

fn autocast(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let ds = &mut inputs.ds;
    if ds.flag("torch_autocast.enabled")? != Setting::Is(true) {
        return Ok(None);
    }
    let dtype = ds.text("torch_autocast.dtype")?;
    let text = match dtype.map(|dtype| dtype_of(&dtype)) {
        Setting::Missing | Setting::Is(Some("bf16")) => "Amp(bf16)",
        Setting::Is(Some("f16")) => "Amp(f16)",
        _ => return Err(ds.wrong("torch_autocast.dtype", "\"bfloat16\" or \"float16\"")),
    };
    let note = Outcome::Taken(format!("strategies: {text}"));
    ds.settle("torch_autocast.enabled", note.clone());
    ds.settle("torch_autocast.dtype", note);
    Ok(Some(Item::certain(text)))
}
