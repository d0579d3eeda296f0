//! Skips updates whose gradient norm is an outlier.
//!
//! Large models lose thousands of updates to a single bad batch. PaLM's authors restarted before such spikes and left
//! out the batches (Chowdhery et al., 2022, arXiv:2204.02311, section 5.1); skipping the update needs no restart.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::{
    Effects, Grads, Outcome, SettingError, Setup, SkipReason, Stage, StageState, Stages, Strategy,
    StrategyError, StrategyRecipe,
};

const NAME: &str = "SkipOutliers";

/// Makes no update in a step whose gradient norm is far above the norms before it.
///
/// With m and s the mean and the standard deviation of about the last `window` norms, a step with the norm
///
/// ```text
/// g > m + sigmas · s
/// ```
///
/// is skipped: parameters, moments, schedule and step counter stay as they are, and the skip is counted and logged. The
/// first `window` norms skip nothing. An outlier enters mean and deviation as the bound that it exceeded, so a lasting
/// change of the norms is not skipped forever.
///
/// Mean and variance are weighted exponentially (Finch, *Incremental calculation of weighted mean and variance*, 2009):
/// with d = g - m and w = 1/window,
///
/// ```text
/// m ← m + w·d,   s² ← (1 - w)(s² + w·d²)
/// ```
///
/// where w is 1/n for the n-th of the first norms. All ranks skip alike, since the norm is that of all ranks. Reading
/// the norm waits for the device once per update.
///
/// ```
/// use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use firebrick_strategies::{Composition, Grads, Outcome, Setup, SkipOutliers};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(1, 1).with_bias(false).init(&device);
/// let mut skip = SkipOutliers::new(6.0).window(4).start(&mut Setup::new(&model, &device))?;
/// let mut skips = |norm: f64| {
///     let mut params = GradientsParams::new();
///     params.register(model.weight.id, Tensor::<2>::full([1, 1], norm, &Device::flex()));
///     Ok::<_, firebrick_strategies::StrategyError>(matches!(
///         skip.collect(&model, Grads::new(params, true))?,
///         Outcome::Skip(_)
///     ))
/// };
/// for norm in [1.0, 1.2, 0.9, 1.1, 1.0] {
///     assert!(!skips(norm)?);
/// }
/// assert!(skips(9.0)? && !skips(1.1)?);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SkipOutliers {
    sigmas: f64,
    window: u64,
}

impl Default for SkipOutliers {
    /// 6 standard deviations of the last 128 norms.
    fn default() -> Self {
        Self { sigmas: 6.0, window: 128 }
    }
}

impl SkipOutliers {
    /// Skips norms more than so many standard deviations above the mean.
    pub fn new(sigmas: f64) -> Self {
        Self { sigmas, ..Self::default() }
    }

    /// Sets the number of norms that mean and deviation are about. Default: 128.
    pub fn window(self, norms: u64) -> Self {
        Self { window: norms, ..self }
    }
}

impl StrategyRecipe for SkipOutliers {
    fn effects(&self) -> Effects {
        Effects::of(NAME)
    }

    fn check(&self) -> Result<(), SettingError> {
        let possible = self.sigmas > 0.0 && self.sigmas.is_finite();
        SettingError::require(possible, "sigmas", "finite and above 0", self.sigmas)?;
        SettingError::require(self.window >= 2, "window", "at least 2", self.window)
    }
}

impl<M: Module> Strategy<M> for SkipOutliers {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Watching { recipe: self.clone(), seen: 0, mean: 0.0, variance: 0.0 }))
    }
}

/// The live state of [`SkipOutliers`].
#[derive(Debug)]
struct Watching {
    recipe: SkipOutliers,
    /// Norms so far, counted up to the window.
    seen: u64,
    mean: f64,
    variance: f64,
}

impl Watching {
    /// Enters a norm, and returns the bound that it exceeds, if it is an outlier.
    fn exceeded(&mut self, norm: f64) -> Option<f64> {
        let bound = self.mean + self.recipe.sigmas * self.variance.sqrt();
        let is_outlier = self.seen == self.recipe.window && norm > bound;
        self.seen = (self.seen + 1).min(self.recipe.window);
        let (share, distance) =
            (1.0 / self.seen as f64, norm.min(if is_outlier { bound } else { norm }) - self.mean);
        self.mean += share * distance;
        self.variance = (1.0 - share) * (self.variance + share * distance * distance);
        is_outlier.then_some(bound)
    }
}

impl<M: Module> Stage<M> for Watching {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if grads.skip().is_some() {
            return Ok(Outcome::Apply(grads));
        }
        let norm = grads.read_norm(master)?;
        if grads.skip().is_some() {
            // Another rank skips the step, so that this is not the norm of all gradients.
            return Ok(Outcome::Apply(grads));
        }
        // The trainer skips a step whose norm is not finite.
        match Some(norm).filter(|norm| norm.is_finite()).and_then(|norm| self.exceeded(norm)) {
            None => Ok(Outcome::Apply(grads)),
            Some(bound) => {
                let why = format!("the gradient norm of {norm:.3e} is an outlier, above {bound:.3e}");
                Ok(Outcome::Skip(SkipReason::Other(why)))
            }
        }
    }

    fn save(&self, state: StageState) -> StageState {
        state.with("seen", self.seen as f64).with("mean", self.mean).with("variance", self.variance)
    }

    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        self.seen = (saved.get("seen")? as u64).min(self.recipe.window);
        (self.mean, self.variance) = (saved.get("mean")?, saved.get("variance")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accumulate, Composed, conformance, testing};

    fn watching(sigmas: f64, window: u64) -> Watching {
        let recipe = SkipOutliers::new(sigmas).window(window);
        Watching { recipe, seen: 0, mean: 0.0, variance: 0.0 }
    }

    #[test]
    fn the_first_norms_have_their_plain_mean_and_variance() {
        let mut watching = watching(1.0, 4);
        let norms = [3.0, 1.0, 5.0, 7.0];
        assert!(norms.iter().all(|norm| watching.exceeded(*norm).is_none()));
        assert!(
            (watching.mean - 4.0).abs() < 1e-12 && (watching.variance - 5.0).abs() < 1e-12,
            "{watching:?}"
        );
    }

    #[test]
    fn an_outlier_counts_as_its_bound_so_that_a_lasting_change_is_accepted() {
        let mut watching = watching(3.0, 8);
        for index in 0..16 {
            assert_eq!(watching.exceeded(1.0 + 0.1 * f64::from(index % 2)), None);
        }
        let mean = watching.mean;
        assert!(watching.exceeded(1e9).is_some());
        assert!(watching.mean < mean + 3.0, "{watching:?}");
        let skipped = (0..100).take_while(|_| watching.exceeded(10.0).is_some()).count();
        assert!((1..100).contains(&skipped), "{skipped}");
    }

    #[test]
    fn it_obeys_the_laws_behind_the_sum_of_a_step() {
        let device = testing::device().autodiff();
        let composed = Composed::new().with(Accumulate(2)).with(SkipOutliers::new(2.0).window(2));
        conformance::check(&composed, &device, 1e-4).unwrap();
        conformance::check_identity(&SkipOutliers::new(1e30).window(2), &device).unwrap();
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |recipe: SkipOutliers| recipe.check().unwrap_err().to_string();
        assert_eq!(refused(SkipOutliers::new(0.0)), "`sigmas` must be finite and above 0, found 0");
        assert_eq!(refused(SkipOutliers::default().window(1)), "`window` must be at least 2, found 1");
    }
}
