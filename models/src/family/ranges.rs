//! Ranges of settings that several families have.

use firebrick_strategies::SettingError;

use crate::pretrained::{MOST_LAYERS, MOST_SIZE};

/// The settings of a transformer.
///
/// Their ranges are those of a configuration in a Hugging Face folder, because each model is saved as one.
pub(crate) struct Transformer {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub inner: Option<usize>,
    /// The width inside a feed-forward layer if `inner` is not given.
    pub default_inner: usize,
    pub dropout: f64,
}

impl Transformer {
    pub fn check(self) -> Result<(), SettingError> {
        let Self { layers, heads, width, inner, default_inner, dropout } = self;
        let possible = (1..=MOST_LAYERS).contains(&layers);
        let expected = format!("at least 1 and at most {MOST_LAYERS} (for a larger model, raise `width`)");
        SettingError::require(possible, "layers", expected, layers)?;
        for (setting, size) in [("heads", heads), ("width", width), ("inner", inner.unwrap_or(1))] {
            let possible = (1..=MOST_SIZE).contains(&size);
            let expected = format!("at least 1 and at most {MOST_SIZE}");
            SettingError::require(possible, setting, expected, size)?;
        }
        let expected = format!("a multiple of `heads`, which is {heads}");
        SettingError::require(width.is_multiple_of(heads), "width", expected, width)?;
        let possible = inner.is_some() || default_inner <= MOST_SIZE;
        let expected = format!(
            "small enough that the default feed-forward width, {default_inner}, is at most {MOST_SIZE}"
        );
        SettingError::require(possible, "width", expected, width)?;
        let within = (0.0..1.0).contains(&dropout);
        SettingError::require(within, "dropout", "at least 0 and below 1", dropout)
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::SpecialTokens;
    use proptest::prelude::*;

    use super::*;
    use crate::bert::BertShape;
    use crate::family::{Family, Sizes};
    use crate::llama::LlamaShape;
    use crate::t5::T5Shape;
    use crate::{
        BartConfig, BartShape, BertConfig, Gpt2Config, GptConfig, LlamaConfig, ModernBertConfig,
        ModernBertShape, T5Config,
    };

    /// Numbers of all magnitudes, and those at a limit.
    fn sizes() -> impl Strategy<Value = usize> {
        let limits = [0, 1, 2, MOST_LAYERS, MOST_LAYERS + 1, MOST_SIZE / 4, MOST_SIZE, MOST_SIZE + 2];
        let powers = (0u32..40, 0usize..4).prop_map(|(power, more)| (1usize << power) + more);
        prop_oneof![powers, prop::sample::select(limits.to_vec())]
    }

    /// A run file must not describe a model that its `config.json` rejects once the data is read.
    fn can_be_saved<C: Family>(shape: &C::Shape) -> Result<(), TestCaseError> {
        if C::check_shape(shape).is_ok() {
            let special = SpecialTokens::default();
            let config = C::fresh(shape, Sizes { vocabulary: 10, positions: 10, special: &special });
            prop_assert!(config.check().is_ok(), "{shape:?}: {:?}", config.check());
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_shape_that_is_accepted_can_be_saved(
            (layers, heads, times, width) in (sizes(), sizes(), sizes(), sizes()),
            (multiple, given) in (any::<bool>(), prop::option::of(sizes())),
            key_value_heads in prop::option::of(sizes()),
            (layers_fit, heads_fit) in (any::<bool>(), any::<bool>()),
        ) {
            let (layers, heads) = (if layers_fit { 1 } else { layers }, if heads_fit { 1 } else { heads });
            let width = if multiple { heads.saturating_mul(times) } else { width };
            let (dropout, tied, inner) = (0.0, true, given);
            can_be_saved::<Gpt2Config>(&GptConfig { layers, heads, width, dropout, bias: true, tied })?;
            can_be_saved::<LlamaConfig>(&LlamaShape { layers, heads, key_value_heads, width, inner, dropout, tied })?;
            can_be_saved::<BartConfig>(&BartShape { layers, heads, width, inner, dropout })?;
            can_be_saved::<BertConfig>(&BertShape { layers, heads, width, inner, dropout })?;
            let window = times;
            can_be_saved::<ModernBertConfig>(&ModernBertShape { layers, heads, width, inner, window, dropout })?;
            can_be_saved::<T5Config>(&T5Shape { layers, heads, width, inner, dropout, gated: true, tied })?;
        }
    }
}
