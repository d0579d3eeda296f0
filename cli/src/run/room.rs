//! Checks that this machine has room for a run, before anything is allocated.

use firebrick_datasets::{Batch, Cursor, DataError, Requests, SampleError};
use firebrick_kernels::packed::Packing;
use firebrick_strategies::Order;

use super::many_ranks::ParameterKind;
use super::prepare::Parts;
use super::shapes::{MOST_LAYERS, outside_blocks, parameters};
use super::shapes::{Shape, shapes};
use super::{DataRun, Process, Run};
use crate::RunError;
use firebrick::engine::feed::{Share, cut};
use firebrick::{Data, memory};
use firebrick_models::AnyConfig;
use firebrick_models::family::Attention;

impl Run {
    /// Rejects more ranks than a process can run and, on the CPU, a run that needs more memory than the machine has:
    /// weights, gradients and moments, except those on a disk, and the least that a micro-batch needs, over all ranks of
    /// this process.
    pub(super) fn require_room(&self, parts: &Parts) -> Result<(), RunError> {
        let processes = Process::this()?.of;
        let ranks = self.number_of_ranks() / processes;
        let counted = self.counted(&parts.config, &parts.fresh)?;
        let weights = |order: &Order| counted.bytes(|kind| self.bytes_per_parameter(order, processes, kind));
        let Some(available) = memory::of_machine().filter(|_| parts.device_name.starts_with("cpu")) else {
            return Ok(());
        };
        let per_step = DataRun::from(self).micro_batches().saturating_mul(self.data_ranks());
        let first = Rows::of_first_micro_batch(&parts.data, per_step)?;
        let pass = ranks as f64 * first.least_bytes(&parts.config.attention());
        let order = self.counted_order();
        let needed = weights(&order) + pass;
        match needed > available as f64 {
            true => {
                let Rows { rows, tokens } = first;
                let parameters = counted.parameters();
                let on_disk = weights(&self.order_on_disk()) + pass;
                let a_disk_helps = !order.offloads_parameters_to_disk() && on_disk <= available as f64;
                Err(RunError::TooLarge { parameters, rows, tokens, ranks, needed, available, a_disk_helps })
            }
            false => Ok(()),
        }
    }

    /// Counts the trained and the frozen parameters, without drawing any.
    fn counted(&self, config: &AnyConfig, fresh: &[String]) -> Result<ParameterCounts, RunError> {
        let all = parameters(config);
        if !self.strategies.iter().any(|strategy| strategy.effects().adapts) {
            let outside = outside_blocks(config);
            let trained = Number { in_blocks: all - outside, outside };
            return Ok(ParameterCounts { trained, frozen: Number::default(), packed: None });
        }
        let made = config.with_layers(config.layers().min(MOST_LAYERS));
        // Computed as floats, which no shape overflows.
        let elements = |shape: &Shape| shape.shape.iter().map(|axis| *axis as f64).product::<f64>();
        let shapes = shapes(&made, &self.strategies, fresh)?;
        let of_all = all / parameters(&made);
        let sum = |wanted: &dyn Fn(&Shape) -> bool| {
            let sum = |in_block| {
                let shapes = shapes.iter().filter(|shape| shape.in_block == in_block && wanted(shape));
                of_all * shapes.map(elements).sum::<f64>()
            };
            Number { in_blocks: sum(true), outside: sum(false) }
        };
        let packing = shapes.iter().find_map(|shape| shape.packing);
        Ok(ParameterCounts {
            trained: sum(&|shape| shape.packing.is_none() && shape.is_trained),
            frozen: sum(&|shape| shape.packing.is_none() && !shape.is_trained),
            packed: packing.map(|packing| (sum(&|shape| shape.packing.is_some()).all(), packing)),
        })
    }
}

/// Numbers of parameters, as floats because the shape may be impossible.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ParameterCounts {
    trained: Number,
    /// Those that are not packed.
    frozen: Number,
    /// The packed ones, and how they are packed.
    packed: Option<(f64, Packing)>,
}

impl ParameterCounts {
    fn parameters(&self) -> f64 {
        self.trained.all() + self.frozen.all() + self.packed.map_or(0.0, |(packed, _)| packed)
    }

    /// Returns the bytes of all, if a parameter of each kind takes so many.
    fn bytes(&self, of_kind: impl Fn(ParameterKind) -> f64) -> f64 {
        let of = |number: Number, kind| {
            let outside = ParameterKind { in_block: false, ..kind };
            number.in_blocks * of_kind(kind) + number.outside * of_kind(outside)
        };
        let packed = self.packed.map_or(0.0, |(packed, packing)| {
            packed * of_kind(ParameterKind { packing: Some(packing), ..ParameterKind::FROZEN })
        });
        of(self.trained, ParameterKind::TRAINED) + of(self.frozen, ParameterKind::FROZEN) + packed
    }
}

/// A number of parameters: a disk can keep those of blocks, and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Number {
    in_blocks: f64,
    outside: f64,
}

impl Number {
    fn all(self) -> f64 {
        self.in_blocks + self.outside
    }
}

/// The rows of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rows {
    rows: usize,
    /// Tokens of all rows, padding included.
    tokens: usize,
}

impl Rows {
    /// Returns the rows of the first micro-batch without collating it; zero rows if the data does not know its token
    /// counts.
    fn of_first_micro_batch<B: Batch>(data: &Data<B>, per_step: usize) -> Result<Self, DataError> {
        let cut = cut(data, per_step, Share::WHOLE)?;
        let Some(request) = Requests::new(data.train.clone(), Cursor::default(), cut).next() else {
            return Ok(Self { rows: 0, tokens: 0 });
        };
        let positions = request?.positions;
        match data.train.padded_tokens(0, positions.clone()) {
            Ok(tokens) => Ok(Self { rows: positions.len(), tokens }),
            Err(DataError::Sample(SampleError::NoTokenCounts)) => Ok(Self { rows: 0, tokens: 0 }),
            Err(error) => Err(error),
        }
    }

    /// Returns the bytes that any pass over these rows needs: the queries of one block in f32, and the attention scores
    /// of one head for each row, which grow with the square of its length.
    fn least_bytes(self, attention: &[Attention]) -> f64 {
        let (rows, tokens) = (self.rows.max(1) as f64, self.tokens as f64);
        let width = attention.iter().map(|layers| layers.width).min().unwrap_or(0) as f64;
        // Of two sequences, one has at least half of the tokens.
        let sequences = if attention.iter().any(|layers| layers.of_source) { 2.0 } else { 1.0 };
        let length = tokens / rows / sequences;
        4.0 * (tokens * width + rows * length * length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use firebrick::ByteSize;
    use firebrick::datasets::Windows;
    use firebrick_models::drawn_now;
    use firebrick_models::family::Trainable;
    use firebrick_models::{Bart, BartConfig, Gpt, Gpt2Config, GptConfig, Llama, LlamaConfig, T5, T5Config};

    fn assert_foretold<M: Trainable>(config: M::Config) {
        let counted = drawn_now(M::init(&config, &Device::flex())).num_params() as f64;
        assert_eq!(parameters(&AnyConfig::of::<M>(config)), counted);
    }

    fn gpt(shape: &GptConfig, vocabulary: usize, positions: usize) -> AnyConfig {
        AnyConfig::of::<Gpt>(Gpt2Config::of_shape(shape, vocabulary, positions))
    }

    #[test]
    fn parameters_are_foretold() {
        for (bias, tied) in [(true, true), (true, false), (false, true), (false, false)] {
            let shape = GptConfig { layers: 3, heads: 2, width: 16, dropout: 0.0, bias, tied };
            let config = Gpt2Config::of_shape(&shape, 100, 32);
            assert_foretold::<Gpt>(config);
        }
        let small =
            LlamaConfig { hidden_size: 8, intermediate_size: 16, vocab_size: 9, ..Default::default() };
        let config = LlamaConfig { num_hidden_layers: 4, num_attention_heads: 2, ..small };
        assert_foretold::<Llama>(config);
        let small = T5Config { d_model: 8, d_kv: 4, d_ff: 16, vocab_size: 9, ..Default::default() };
        let config = T5Config { num_layers: 3, num_heads: 2, ..small };
        assert_foretold::<T5>(config);
        let small =
            BartConfig { d_model: 8, vocab_size: 9, max_position_embeddings: 7, ..Default::default() };
        let heads = BartConfig { encoder_attention_heads: 2, decoder_attention_heads: 4, ..small };
        let config = BartConfig { encoder_layers: 3, decoder_layers: 3, ..heads };
        assert_foretold::<Bart>(config);
    }

    #[test]
    fn a_shape_that_cannot_be_is_counted_without_being_made() {
        let shape = GptConfig {
            layers: 1_000_000_000,
            heads: 1,
            width: 100_000_000,
            dropout: 0.0,
            bias: true,
            tied: true,
        };
        assert!(parameters(&gpt(&shape, 50_000, 1024)) > 1e26);
    }

    #[test]
    fn what_is_frozen_is_counted_apart() {
        let shape = GptConfig { layers: 3, heads: 2, width: 16, dropout: 0.0, bias: true, tied: true };
        let config = gpt(&shape, 100, 32);
        let counted = |config: &AnyConfig, strategies: &str| {
            let set = format!("strategies={strategies}");
            let run =
                Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), &[set.as_str()]);
            run.unwrap().counted(config, &[]).unwrap()
        };
        let all = counted(&config, "[Clip(norm: 1.0)]");
        // Tokens, positions, and the final norm.
        let outside = 100.0 * 16.0 + 32.0 * 16.0 + 2.0 * 16.0;
        let trained = Number { in_blocks: parameters(&config) - outside, outside };
        assert_eq!(all, ParameterCounts { trained, frozen: Number::default(), packed: None });
        let frozen = Number { in_blocks: 0.0, outside: 100.0 * 16.0 };
        let tokens = ParameterCounts {
            trained: Number { outside: outside - frozen.outside, ..trained },
            frozen,
            ..all
        };
        assert_eq!(counted(&config, r#"[Freeze(["tokens"])]"#), tokens);
        let factors = counted(&config, r#"[Lora(rank: 2, also: ["positions"])]"#);
        assert_eq!(factors.frozen, Number { outside: outside - 32.0 * 16.0, ..trained });
        assert_eq!(factors.trained.outside, 32.0 * 16.0);
        assert!(factors.trained.in_blocks > 0.0, "{factors:?}");
        // A magnitude for each column of two matrices in each of three blocks.
        let dora = counted(&config, r#"[Lora(rank: 2, dora: true, also: ["positions"])]"#);
        let in_blocks = factors.trained.in_blocks + 3.0 * (48.0 + 16.0);
        assert_eq!(dora, ParameterCounts { trained: Number { in_blocks, ..factors.trained }, ..factors });
        let deep = GptConfig { layers: 1_000_000, ..shape };
        let deep = gpt(&deep, 100, 32);
        let blocks = counted(&deep, r#"[Freeze(["blocks.*"])]"#);
        assert!(blocks.frozen.in_blocks > 0.99 * parameters(&deep), "{blocks:?}");
        assert_eq!(blocks.frozen.outside, 0.0);
    }

    #[test]
    fn each_kind_of_parameter_takes_its_bytes() {
        let number = |in_blocks, outside| Number { in_blocks, outside };
        let packed = Some((7.0, Packing::Int8));
        let counted = ParameterCounts { trained: number(1.0, 2.0), frozen: number(3.0, 5.0), packed };
        assert_eq!(counted.parameters(), 18.0);
        let bytes = counted.bytes(|ParameterKind { is_trained, in_block, packing }| {
            match (is_trained, in_block, packing) {
                (true, true, None) => 1e0,
                (true, false, None) => 1e1,
                (false, true, None) => 1e2,
                (false, false, None) => 1e3,
                (_, _, Some(_)) => 1e4,
            }
        });
        assert_eq!(bytes, 75321.0);
    }

    #[test]
    fn a_disk_is_named_only_where_it_helps() {
        let text = |a_disk_helps| {
            let (parameters, rows, tokens, ranks, needed, available) = (1e10, 1, 8, 1, 16e10, 64_000_000_000);
            RunError::TooLarge { parameters, rows, tokens, ranks, needed, available, a_disk_helps }
                .to_string()
        };
        assert!(text(true).ends_with(r#"on a disk with `Offload(keep: parameters, on: "FOLDER")`"#));
        assert!(text(false).ends_with("the vocabulary or `ranks`"));
    }

    #[test]
    fn the_first_micro_batch_is_counted_as_it_is_cut() {
        let data = Data::new(Windows::new((0..1000).map(|id| id % 7).collect::<Vec<_>>(), 9).unwrap());
        let first = |data: Data<_>, per_step| Rows::of_first_micro_batch(&data, per_step).unwrap();
        assert_eq!(first(data.clone().micro_batch(4), 2), Rows { rows: 4, tokens: 40 });
        assert_eq!(first(data.clone().micro_tokens(35), 1), Rows { rows: 3, tokens: 30 });
        let all = data.train.samples(0);
        assert_eq!(first(data.micro_batch(1_000_000_000), 1), Rows { rows: all, tokens: 10 * all });
    }

    #[test]
    fn a_pass_takes_its_queries_and_a_score_for_each_pair_of_tokens() {
        let attention =
            |of_source| [Attention { layers: 3, width: 8, key_width: 8, of_source, over_source: false }];
        let rows = Rows { rows: 2, tokens: 20 };
        assert_eq!(rows.least_bytes(&attention(false)), 4.0 * (20.0 * 8.0 + 2.0 * 100.0));
        assert_eq!(rows.least_bytes(&attention(true)), 4.0 * (20.0 * 8.0 + 2.0 * 25.0));
        assert_eq!(Rows { rows: 0, tokens: 0 }.least_bytes(&attention(false)), 0.0);
    }

    #[test]
    fn the_budget_of_a_run_is_read_written_and_checked() {
        let parse = |set: &str| {
            let file = include_str!("../../../examples/tinyshakespeare.ron");
            Run::parse("file", file, &[format!("device_budget={set}")]).map_err(|error| error.to_string())
        };
        let run = parse("\"1.5GiB\"").unwrap();
        assert_eq!(run.device_budget, Some(ByteSize(1_610_612_736)));
        assert_eq!(Run::parse("again", &run.to_ron(), &[] as &[&str]).unwrap(), run);
        assert_eq!(parse("2GB").unwrap().device_budget, Some(ByteSize(2_000_000_000)));
        assert_eq!(parse("None").unwrap().device_budget, None);
        for (set, expected) in [
            ("\"2 furlongs\"", "as in `2GB`"),
            ("2furlongs", "as in `2GB`"),
            ("0", "`device_budget` must be at least 1 byte, found 0"),
            ("\"0 kB\"", "`device_budget` must be at least 1 byte, found 0"),
        ] {
            let error = parse(set).unwrap_err();
            assert!(error.contains(expected), "{set}: {error}");
        }
    }
}
