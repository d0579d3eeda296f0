//! A curve of any number of readings in bounded memory.

/// The maximum number of buckets of a curve; each is drawn as two points.
const MOST_BUCKETS: usize = 750;

/// Readings in order, in buckets of equal size. When there are too many buckets, neighbours are merged. A bucket
/// remembers its lowest and highest reading, so a spike of a single step among millions is still drawn.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    buckets: Vec<Bucket>,
    /// The number of readings in a full bucket.
    capacity: u64,
    first: Option<Point>,
    last: Option<Point>,
}

/// A reading: the step and the value.
pub(crate) type Point = (f64, f64);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    count: u64,
    step_sum: f64,
    sum: f64,
    lowest: Point,
    highest: Point,
}

impl Bucket {
    fn merge(&mut self, later: &Self) {
        self.count += later.count;
        self.step_sum += later.step_sum;
        self.sum += later.sum;
        if later.lowest.1 < self.lowest.1 {
            self.lowest = later.lowest;
        }
        if later.highest.1 > self.highest.1 {
            self.highest = later.highest;
        }
    }

    fn mean(&self) -> Point {
        (self.step_sum / self.count as f64, self.sum / self.count as f64)
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self { buckets: Vec::new(), capacity: 1, first: None, last: None }
    }
}

impl Curve {
    /// Adds a reading, if there is one. Skips values that cannot be drawn.
    pub fn add(&mut self, step: u64, value: Option<f64>) {
        // Sums of larger readings would not be finite.
        let Some(value) = value.filter(|value| value.abs() < 1e290) else { return };
        let point = (step as f64, value);
        let reading = Bucket { count: 1, step_sum: point.0, sum: value, lowest: point, highest: point };
        self.first.get_or_insert(point);
        self.last = Some(point);
        match self.buckets.last_mut().filter(|bucket| bucket.count < self.capacity) {
            Some(bucket) => bucket.merge(&reading),
            None => self.open(reading),
        }
    }

    fn open(&mut self, reading: Bucket) {
        if self.buckets.len() == MOST_BUCKETS {
            self.capacity *= 2;
            let halves = self.buckets.chunks(2).filter_map(|pair| {
                let (first, rest) = pair.split_first()?;
                let mut both = *first;
                rest.iter().for_each(|later| both.merge(later));
                Some(both)
            });
            self.buckets = halves.collect();
        }
        self.buckets.push(reading);
    }

    pub fn highest(&self) -> Option<Point> {
        self.buckets.iter().map(|bucket| bucket.highest).max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Actual readings by step: the lowest and the highest of each bucket, the first and the last.
    pub fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = self.buckets.iter().flat_map(|b| [b.lowest, b.highest]).collect();
        points.dedup();
        if let Some(first) = self.first.filter(|first| points.first() != Some(first)) {
            points.insert(0, first);
        }
        points.extend(self.last.filter(|last| points.last() != Some(last)));
        // Within a bucket, the highest reading may come first.
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points.dedup();
        points
    }

    /// The mean of each bucket, by step.
    pub fn means(&self) -> Vec<Point> {
        self.buckets.iter().map(Bucket::mean).collect()
    }

    /// The highest reading of each bucket, by step.
    pub fn peaks(&self) -> Vec<Point> {
        self.buckets.iter().map(|bucket| bucket.highest).collect()
    }

    /// The curve without its noise: the means of the buckets, smoothed with a Gaussian kernel. The kernel is
    /// symmetric, so nothing lags. A curve with few readings is not smoothed.
    pub fn smoothed(&self) -> Option<Smoothed> {
        let means: Vec<Point> = self.buckets.iter().map(Bucket::mean).collect();
        let deviation = means.len() as f64 / 60.0;
        if deviation < 0.5 {
            return None;
        }
        let reach = (3.0 * deviation).ceil() as usize;
        let points = (0..means.len()).map(|at| {
            let near = at.saturating_sub(reach)..(at + reach + 1).min(means.len());
            let (mut sum, mut weights) = (0.0, 0.0);
            for (other, (_, mean)) in means.iter().enumerate().take(near.end).skip(near.start) {
                let distance = (other as f64 - at as f64) / deviation;
                let weight = (-0.5 * distance * distance).exp();
                sum += weight * mean;
                weights += weight;
            }
            (means[at].0, sum / weights)
        });
        Some(Smoothed { points: points.collect(), deviation: deviation * self.capacity as f64 })
    }
}

/// A smoothed curve.
#[derive(Clone, Debug)]
pub(crate) struct Smoothed {
    pub points: Vec<Point>,
    /// The standard deviation of the kernel, in steps.
    pub deviation: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: impl IntoIterator<Item = f64>) -> Curve {
        let mut curve = Curve::default();
        values.into_iter().enumerate().for_each(|(step, value)| curve.add(step as u64, Some(value)));
        curve
    }

    #[test]
    fn spikes_among_a_million_readings_survive() {
        let value = |step: usize| match step {
            123_456 => 99.0,
            654_321 => -7.0,
            _ => (step % 10) as f64,
        };
        let curve = curve((0..1_000_000).map(value));
        let points = curve.points();
        assert!(points.len() <= 2 * MOST_BUCKETS + 2, "{}", points.len());
        for kept in [(123_456.0, 99.0), (654_321.0, -7.0), (0.0, 0.0), (999_999.0, 9.0)] {
            assert!(points.contains(&kept), "{kept:?}");
        }
        assert!(points.is_sorted_by(|one, other| one.0 <= other.0));
        assert_eq!(curve.highest(), Some((123_456.0, 99.0)));
        let again: Vec<_> = points.iter().filter(|point| point.1 == -7.0).collect();
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn few_readings_are_kept_as_they_are() {
        let curve = curve([3.0, 1.0, 2.0]);
        assert_eq!(curve.points(), [(0.0, 3.0), (1.0, 1.0), (2.0, 2.0)]);
        assert!(curve.smoothed().is_none());
    }

    #[test]
    fn smoothing_leaves_the_mean_and_takes_the_noise() {
        let noisy = curve((0..10_000).map(|step| 5.0 + if step % 2 == 0 { 1.0 } else { -1.0 }));
        let smoothed = noisy.smoothed().unwrap();
        assert!(smoothed.points.iter().all(|(_, mean)| (mean - 5.0).abs() < 0.01));
        // A straight line is unchanged, except at its two ends.
        let line = curve((0..600).map(f64::from)).smoothed().unwrap();
        let middle = &line.points[60..540];
        assert!(middle.iter().all(|(step, value)| (step - value).abs() < 1e-9));
    }

    #[test]
    fn infinite_readings_are_left_out() {
        let curve = curve([f64::NAN, f64::INFINITY, 1e300, 2.0]);
        assert_eq!(curve.points(), [(3.0, 2.0)]);
    }
}
