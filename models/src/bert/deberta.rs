//! The fields of `config.json` that only a DeBERTa has.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::BertConfig;
use super::kind::BertLine;
use crate::Activation;
use crate::pretrained::{MOST_SIZE, PretrainedError, check_dropouts};

/// Far above any use, so that a typo is reported instead of tried.
const LONGEST_KERNEL: i64 = 99;

/// What distinguishes a DeBERTa from a BERT.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Deberta {
    /// Whether the columns of tokens are embedded, as in BERT.
    pub is_absolute: bool,
    /// How attention reads the distance between two tokens, if it does.
    pub relative: Option<Relative>,
    /// How many products a score is the sum of: that of contents, and those of contents with distances.
    pub products: usize,
    /// The convolution beside the first block, if there is one.
    pub convolved: Option<Convolved>,
    /// Dropout of the first token, before a classifier of texts.
    pub pooler_dropout: f64,
    /// The activation between the two layers of a classifier of texts.
    pub pooler_activation: Activation,
    /// Whether a masked LM has BERT's head, which transformers writes, or the head of the original files.
    pub is_legacy: bool,
}

/// A convolution of embeddings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Convolved {
    /// The number of tokens that each token reads, itself in their middle: an odd number.
    pub kernel: usize,
    pub activation: Activation,
}

/// How attention reads the distance between two tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Relative {
    /// Groups of distances in either direction; `None` if each distance is its own group.
    pub buckets: Option<usize>,
    /// Larger distances are alike.
    pub most: usize,
    /// Whether the embeddings of the distances are normalised.
    pub is_normed: bool,
    /// Whether distances have the keys and queries of contents, rather than linear layers of their own.
    pub is_shared: bool,
    /// Whether queries of contents meet keys of distances.
    pub with_keys: bool,
    /// Whether keys of contents meet queries of distances.
    pub with_queries: bool,
}

impl BertConfig {
    /// The fields of a DeBERTa; `None` for other models.
    ///
    /// # Errors
    ///
    /// A field has another type, is out of range, or asks for a layer that is not supported.
    pub(super) fn deberta(&self) -> Result<Option<Deberta>, PretrainedError> {
        if self.kind() != BertLine::Deberta {
            return Ok(None);
        }
        let flag = |name, default| self.field(name, "true or false", default);
        let head = self.hidden_size / self.num_attention_heads.max(1);
        for (name, expected) in [("attention_head_size", head), ("pooler_hidden_size", self.hidden_size)] {
            let found = self.field(name, "a number", expected)?;
            if found != expected {
                return Err(PretrainedError::setting(name, expected.to_string(), found));
            }
        }
        if let Some(found) = self.embedding_size.filter(|size| *size != self.hidden_size) {
            let expected = format!("{}, as `hidden_size`", self.hidden_size);
            return Err(PretrainedError::setting("embedding_size", expected, found));
        }
        let pooler_dropout = self.field("pooler_dropout", "a number", 0.0)?;
        check_dropouts(&[("pooler_dropout", pooler_dropout)])?;
        let [with_keys, with_queries] = self.attention_types()?;
        let relative = match flag("relative_attention", false)? {
            false => None,
            true => Some(self.relative(with_keys, with_queries)?),
        };
        Ok(Some(Deberta {
            is_absolute: flag("position_biased_input", true)?,
            relative,
            convolved: self.convolved()?,
            products: 1 + usize::from(with_keys) + usize::from(with_queries),
            pooler_dropout,
            pooler_activation: self.field("pooler_hidden_act", "an activation", Activation::Gelu)?,
            is_legacy: flag("legacy", true)?,
        }))
    }

    fn convolved(&self) -> Result<Option<Convolved>, PretrainedError> {
        let expected = format!("0, or an odd number of tokens up to {LONGEST_KERNEL}");
        let kernel = self.field::<i64>("conv_kernel_size", &expected, 0)?;
        if kernel <= 0 {
            return Ok(None);
        }
        if kernel % 2 == 0 || kernel > LONGEST_KERNEL {
            return Err(PretrainedError::setting("conv_kernel_size", expected, kernel));
        }
        let groups = self.field::<i64>("conv_groups", "1", 1)?;
        if groups != 1 {
            return Err(PretrainedError::setting("conv_groups", "1: channels are not grouped", groups));
        }
        let activation = self.field("conv_act", "an activation", Activation::Tanh)?;
        Ok(Some(Convolved { kernel: kernel as usize, activation }))
    }

    fn relative(&self, with_keys: bool, with_queries: bool) -> Result<Relative, PretrainedError> {
        let size = |name, other: Option<usize>| match self.field::<i64>(name, "a number", -1)? {
            found if found < 1 => Ok(other),
            found if found as u64 <= MOST_SIZE as u64 => Ok(Some(found as usize)),
            found => Err(PretrainedError::setting(name, format!("at most {MOST_SIZE}"), found)),
        };
        let buckets = size("position_buckets", None)?;
        let most = size("max_relative_positions", Some(self.max_position_embeddings))?;
        let most = most.unwrap_or(self.max_position_embeddings);
        // The logarithms of larger distances are counted from half of the buckets on.
        if let Some(buckets) = buckets.filter(|buckets| *buckets < 2 || most < buckets / 2 + 2) {
            let expected = format!("2 to {}, since distances end at {most}", 2 * most.saturating_sub(2) + 1);
            return Err(PretrainedError::setting("position_buckets", expected, buckets));
        }
        let norms: String = self.field("norm_rel_ebd", "a text", "none".to_owned())?;
        Ok(Relative {
            buckets,
            most,
            is_normed: norms.to_lowercase().split('|').any(|norm| norm.trim() == "layer_norm"),
            is_shared: self.field("share_att_key", "true or false", false)?,
            with_keys,
            with_queries,
        })
    }

    /// Whether `pos_att_type`, a list or a text such as `p2c|c2p`, holds `c2p`, and whether it holds `p2c`.
    fn attention_types(&self) -> Result<[bool; 2], PretrainedError> {
        const FIELD: &str = "pos_att_type";
        let expected = "c2p, p2c or both";
        let given = self.field(FIELD, expected, Value::Array(Vec::new()))?;
        let types: Vec<String> = match &given {
            Value::String(types) => types.to_lowercase().split('|').map(|kind| kind.trim().into()).collect(),
            _ => self.field(FIELD, expected, Vec::new())?,
        };
        let types: Vec<&str> = types.iter().map(String::as_str).filter(|kind| !kind.is_empty()).collect();
        match types.iter().all(|kind| matches!(*kind, "c2p" | "p2c")) {
            true => Ok(["c2p", "p2c"].map(|kind| types.contains(&kind))),
            false => Err(PretrainedError::setting(FIELD, expected, given)),
        }
    }

    /// A field that is not a field of this type.
    fn field<T: DeserializeOwned>(
        &self,
        name: &'static str,
        expected: &str,
        default: T,
    ) -> Result<T, PretrainedError> {
        match self.rest.get(name).filter(|value| !value.is_null()) {
            None => Ok(default),
            Some(value) => T::deserialize(value).map_err(|_| PretrainedError::setting(name, expected, value)),
        }
    }
}

impl Relative {
    /// The number of groups of distances in either direction: half the rows of the table.
    pub fn span(&self) -> usize {
        self.buckets.unwrap_or(self.most)
    }

    /// The row of the table for a distance, which is the query's position minus the key's.
    pub fn row(&self, distance: i64) -> usize {
        let span = self.span() as i64;
        (self.group(distance) + span).clamp(0, 2 * span - 1) as usize
    }

    /// The group of a distance. Each small distance has its own, and a group of larger ones holds those of about the same
    /// logarithm.
    ///
    /// Computed in f32 like transformers, so that distances at the edge of a group fall into the same group.
    fn group(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else { return distance };
        let (middle, apart) = (buckets / 2, distance.unsigned_abs() as usize);
        if apart <= middle {
            return distance;
        }
        let share =
            (apart as f32 / middle as f32).ln() / (((self.most - 1) as f64 / middle as f64) as f32).ln();
        ((share * (middle - 1) as f32).ceil() as i64 + middle as i64) * distance.signum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;
    use crate::pretrained::HubConfig;

    fn config(fields: &str) -> BertConfig {
        serde_json::from_str(&format!(r#"{{"model_type": "deberta-v2", {fields}}}"#)).unwrap()
    }

    fn deberta(fields: &str) -> Deberta {
        config(fields).deberta().unwrap().unwrap()
    }

    /// The fields of `microsoft/deberta-v3-base`.
    const THIRD: &str = r#""attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
        "relative_attention": true, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": true,
        "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
        "position_biased_input": false, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0,
        "vocab_size": 128100"#;

    #[test]
    fn files_of_the_hub_are_read() {
        let expected = Relative {
            buckets: Some(256),
            most: 512,
            is_normed: true,
            is_shared: true,
            with_keys: true,
            with_queries: true,
        };
        let found = deberta(THIRD);
        assert_eq!((found.relative, found.is_absolute, found.products), (Some(expected), false, 3));
        let third = config(THIRD);
        third.check().unwrap();
        assert_eq!((third.positions(), third.attention()[0].layers, third.segments()), (None, 36, 0));
        let small = config(r#""pooler_hidden_size": 1536, "cls_dropout": 0.3, "hidden_dropout_prob": 0.2"#);
        assert_eq!((small.hidden_size, small.num_hidden_layers, small.positions()), (1536, 24, Some(512)));
        assert_eq!((small.classifier_dropout(), small.token_dropout()), (0.3, 0.2));
        small.check().unwrap();
        small.smallest().check().unwrap();
        let plain = deberta(r#""pos_att_type": null"#);
        assert_eq!((plain.relative, plain.is_absolute, plain.products), (None, true, 1));
        assert_eq!(BertConfig::default().deberta().unwrap(), None);
    }

    #[test]
    fn a_convolution_has_transformers_defaults() {
        let found = deberta(r#""conv_kernel_size": 3, "conv_act": "gelu""#).convolved;
        assert_eq!(found, Some(Convolved { kernel: 3, activation: Activation::Gelu }));
        let found = deberta(r#""conv_kernel_size": 5"#).convolved;
        assert_eq!(found, Some(Convolved { kernel: 5, activation: Activation::Tanh }));
        assert_eq!(deberta(r#""conv_kernel_size": 0, "conv_groups": 2"#).convolved, None);
    }

    #[test]
    fn groups_match_transformers() {
        // `make_log_bucket_position` of transformers 5.24 for these distances.
        let relative = deberta(THIRD).relative.unwrap();
        let distances =
            [-600, -511, -400, -256, -200, -129, -128, -1, 0, 127, 128, 129, 131, 200, 300, 511, 512];
        let expected =
            [-270, -255, -233, -192, -169, -129, -128, -1, 0, 127, 128, 129, 131, 169, 207, 255, 256];
        assert_eq!(distances.map(|distance| relative.group(distance)), expected);
        assert_eq!([-600, -1, 600].map(|distance| relative.row(distance)), [0, 255, 511]);
        let few = Relative { buckets: Some(7), most: 12, ..relative.clone() };
        assert_eq!(
            (0..12).map(|distance| few.group(distance)).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 4, 5, 5, 5, 5, 5, 5]
        );
        let each = Relative { buckets: None, most: 3, ..relative };
        assert_eq!([-9, -3, -1, 0, 2, 3].map(|distance| each.row(distance)), [0, 0, 2, 3, 5, 5]);
    }

    #[test]
    fn invalid_settings_are_named() {
        for (fields, field, found) in [
            (r#""conv_kernel_size": 4"#, "conv_kernel_size", "4"),
            (r#""conv_kernel_size": 101"#, "conv_kernel_size", "101"),
            (r#""conv_kernel_size": 3, "conv_groups": 2"#, "conv_groups", "2"),
            (r#""conv_kernel_size": 3, "conv_act": "mish""#, "conv_act", "\"mish\""),
            (r#""embedding_size": 8"#, "embedding_size", "8"),
            (r#""attention_head_size": 8"#, "attention_head_size", "8"),
            (r#""pooler_hidden_size": "wide""#, "pooler_hidden_size", "\"wide\""),
            (r#""pooler_dropout": 1.0"#, "pooler_dropout", "1"),
            (r#""cls_dropout": 2"#, "cls_dropout", "2"),
            (r#""pooler_hidden_act": "mish""#, "pooler_hidden_act", "\"mish\""),
            (r#""relative_attention": 1"#, "relative_attention", "1"),
            (r#""legacy": "yes""#, "legacy", "\"yes\""),
            (r#""pos_att_type": "c2p|p2p""#, "pos_att_type", "\"c2p|p2p\""),
            (r#""pos_att_type": [1]"#, "pos_att_type", "[1]"),
            (r#""relative_attention": true, "norm_rel_ebd": true"#, "norm_rel_ebd", "true"),
            (r#""relative_attention": true, "position_buckets": 1"#, "position_buckets", "1"),
            (
                r#""relative_attention": true, "position_buckets": 256, "max_relative_positions": 129"#,
                "position_buckets",
                "256",
            ),
            (
                r#""relative_attention": true, "max_relative_positions": 99999999999"#,
                "max_relative_positions",
                "99999999999",
            ),
        ] {
            let error = config(fields).check().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{field}`")) && error.contains(&format!("found {found}")),
                "{error}"
            );
        }
    }
}
