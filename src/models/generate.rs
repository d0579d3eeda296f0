//! Text from a trained model.

use burn::module::Module;
use burn::tensor::{FloatDType, Int, Tensor, TensorData, TensorReadError};
use firebrick_strategies::{Communicator, Pass};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use super::Gpt;
use crate::TrainError;
use crate::agreement::any;

/// Draws tokens one after the other, each from the model's distribution given all before it.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick::models::{GptConfig, Sampler};
///
/// let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// let gpt = config.init(5, 4, &Device::flex());
/// let tokens = Sampler { temperature: 0.8, seed: 7 }.generate(&gpt, &[1, 2], 6)?;
/// assert_eq!(tokens.len(), 6);
/// # Ok::<(), burn::tensor::TensorReadError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// Divides the logits: below 1 is more certain, above 1 more varied, 0 takes the most likely.
    pub temperature: f64,
    /// Equal seeds draw equal texts.
    pub seed: u64,
}

impl Sampler {
    /// `count` tokens that follow `prompt`, without it. An empty prompt starts from token 0; of a
    /// long one the model reads as much of the end as its context holds.
    ///
    /// # Errors
    ///
    /// The device failed while the logits were read.
    pub fn generate(&self, gpt: &Gpt, prompt: &[u32], count: usize) -> Result<Vec<u32>, TensorReadError> {
        let gpt = gpt.valid();
        let device = gpt.devices()[0].clone();
        let pass = Pass::evaluate(&device).computing_in(gpt.dtype());
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut tokens = if prompt.is_empty() { vec![0] } else { prompt.to_vec() };
        let start = tokens.len();
        for _ in 0..count {
            let logits = last_logits(&gpt, &pass, &tokens)?;
            tokens.push(self.draw(&logits, rng.random()));
        }
        Ok(tokens.split_off(start))
    }

    /// As [`generate`](Self::generate), on ranks that share the model: each writes a text of its own, which
    /// may start and end elsewhere than the others'. One that is done takes part until all are.
    ///
    /// `gpt` is what evaluation reads and `pass` how it reads it, as the strategies made them: of
    /// [`Zero`](crate::Zero) in stage 3 a shard, whose blocks are gathered one at a time for each token.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or the device failed while the logits were read.
    pub fn generate_among(
        &self,
        world: &Communicator,
        gpt: &Gpt,
        pass: &Pass,
        prompt: &[u32],
        count: usize,
    ) -> Result<Vec<u32>, TrainError> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut tokens = if prompt.is_empty() { vec![0] } else { prompt.to_vec() };
        let end = tokens.len() + count;
        while any(world, "whether a rank still writes", tokens.len() < end)? {
            let (gathered, pass) = pass.enter(gpt)?;
            let logits = last_logits(&gathered, &pass, &tokens)?;
            pass.check()?;
            if tokens.len() < end {
                tokens.push(self.draw(&logits, rng.random()));
            }
        }
        Ok(tokens.split_off(end - count))
    }

    /// The token whose share of the cumulative distribution holds `point`, in `0.0..1.0`.
    fn draw(&self, logits: &[f32], point: f64) -> u32 {
        let (best, highest) = logits
            .iter()
            .enumerate()
            .fold((0, f32::MIN), |best, (id, &logit)| if logit > best.1 { (id, logit) } else { best });
        if self.temperature <= 0.0 {
            return best as u32;
        }
        let weights = logits.iter().map(|logit| (f64::from(logit - highest) / self.temperature).exp());
        let mut rest = point * weights.clone().sum::<f64>();
        let mut ids = 0..;
        let found = weights.zip(&mut ids).find(|(weight, _)| {
            rest -= weight;
            rest < 0.0
        });
        found.map_or(best as u32, |(_, id)| id)
    }
}

/// The logits of the token after these, of which the model reads as much of the end as its context holds.
fn last_logits(gpt: &Gpt, pass: &Pass, tokens: &[u32]) -> Result<Vec<f32>, TensorReadError> {
    let seen = &tokens[tokens.len().saturating_sub(gpt.context())..];
    let ids: Vec<i64> = seen.iter().map(|&id| i64::from(id)).collect();
    let data = TensorData::new(ids, [1, seen.len()]);
    let logits = gpt.forward(Tensor::<2, Int>::from_data(data, pass.device()), pass);
    let last = logits.narrow(1, seen.len() - 1, 1).cast(FloatDType::F32);
    Ok(last.try_into_data()?.iter().collect())
}

#[cfg(test)]
mod tests {
    use firebrick_strategies::{Setup, Stage, Strategy, Zero};

    use super::*;
    use crate::models::GptConfig;
    use crate::testing;

    #[test]
    fn ranks_that_share_a_model_write_what_the_whole_model_writes() {
        let config = GptConfig { layers: 2, heads: 2, width: 8, dropout: 0.0, bias: true, tied: true };
        let device = testing::device().autodiff();
        let gpt = config.init(7, 6, &device);
        // Some write longer than others, one nothing; and longer than the context.
        let wanted: [(&[u32], usize); 3] = [(&[1, 2, 3], 9), (&[4], 2), (&[], 0)];
        let sampler = |rank: usize| Sampler { temperature: 1.0, seed: 7 + rank as u64 };
        let ranks = std::sync::Mutex::new(vec![gpt.clone(); 3]);
        let texts = testing::on_ranks(3, |world| {
            let model = ranks.lock().unwrap().pop().unwrap().fork(&device);
            let mut setup = Setup::new(&model, &device).among(world.clone());
            let mut stage = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
            let pass = setup.into_pass().evaluating(FloatDType::F32);
            let master = stage.own(model).unwrap();
            let replica = stage.publish(master.clone()).unwrap();
            let reads = stage.evaluator(&master, replica).unwrap().valid();
            let (prompt, count) = wanted[world.rank()];
            sampler(world.rank()).generate_among(&world, &reads, &pass, prompt, count).unwrap()
        });
        for (rank, (text, (prompt, count))) in texts.iter().zip(wanted).enumerate() {
            assert_eq!(*text, sampler(rank).generate(&gpt, prompt, count).unwrap());
            assert_eq!(text.len(), count);
        }
    }

    #[test]
    fn a_draw_follows_the_distribution() {
        let sampler = Sampler { temperature: 1.0, seed: 0 };
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY, 0.0];
        let points = (0..400).map(|i| (f64::from(i) + 0.5) / 400.0);
        let mut counts = [0; 4];
        points.for_each(|point| counts[sampler.draw(&logits, point) as usize] += 1);
        assert_eq!(counts, [100, 200, 0, 100]);
    }

    #[test]
    fn no_temperature_takes_the_most_likely() {
        let sampler = Sampler { temperature: 0.0, seed: 0 };
        assert_eq!(sampler.draw(&[0.1, 3.0, 0.2], 0.99), 1);
    }
}
