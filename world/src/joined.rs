//! The parts of a call as buffers, for a collective between devices.

use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::call::Call;
use crate::{Collective, PartShape};

/// How the parts of a call that exist are joined: those of one dtype in one buffer.
///
/// A buffer that the collective splits by ranks has a row for each, and so has the result of one that it joins by ranks.
pub(crate) struct Joined {
    buffers: Vec<Layout>,
    /// Parts without elements.
    empty: Vec<usize>,
    /// The rows of each buffer.
    given: usize,
    /// The rows of each result.
    found: usize,
}

struct Layout {
    dtype: DType,
    parts: Vec<usize>,
    /// The elements of each part in one row.
    columns: Vec<usize>,
}

impl Joined {
    /// Joins the parts that `exists` names.
    pub fn of(call: &Call, exists: &[bool], ranks: usize) -> Self {
        let (given, found) = match call.kind {
            Collective::ReduceScatter => (ranks, 1),
            Collective::AllGather => (1, ranks),
            _ => (1, 1),
        };
        let mut joined = Self { buffers: Vec::new(), empty: Vec::new(), given, found };
        for (at, like) in call.parts.iter().enumerate().filter(|(at, _)| exists[*at]) {
            let (elements, dtype) = (like.elements(), wire(call.kind, like));
            if elements == 0 {
                joined.empty.push(at);
                continue;
            }
            let alike = joined.buffers.iter().position(|buffer| buffer.dtype == dtype);
            let alike = alike.unwrap_or_else(|| {
                joined.buffers.push(Layout { dtype, parts: Vec::new(), columns: Vec::new() });
                joined.buffers.len() - 1
            });
            joined.buffers[alike].parts.push(at);
            joined.buffers[alike].columns.push(elements / given);
        }
        joined
    }

    /// Returns the elements and the dtype of each buffer.
    pub fn buffers(&self) -> impl Iterator<Item = (usize, DType)> + '_ {
        self.buffers.iter().map(|buffer| (self.given * buffer.width(), buffer.dtype))
    }

    /// Returns the elements and the dtype of each result.
    pub fn results(&self) -> impl Iterator<Item = (usize, DType)> + '_ {
        self.buffers.iter().map(|buffer| (self.found * buffer.width(), buffer.dtype))
    }

    /// Joins parts, with zeros in place of those that this rank lacks. One alone stays as it is.
    pub fn join(&self, mut parts: Vec<Option<Tensor<1>>>, device: &Device) -> Vec<Tensor<1>> {
        let mut part = |at: usize, columns: usize, dtype| match parts[at].take() {
            Some(part) if part.dtype() == dtype => part,
            Some(part) => part.cast(FloatDType::from(dtype)),
            None => Tensor::zeros([self.given * columns], (device, dtype)),
        };
        let buffer = |Layout { dtype, parts, columns }: &Layout| {
            let all = parts.iter().zip(columns);
            let mut all: Vec<_> = all.map(|(at, columns)| part(*at, *columns, *dtype)).collect();
            match (all.len(), self.given) {
                (1, _) => all.remove(0),
                (_, 1) => Tensor::cat(all, 0),
                (_, rows) => {
                    let all = all.into_iter().zip(columns);
                    let all = all.map(|(part, columns)| part.reshape([rows, *columns]));
                    Tensor::cat(all.collect(), 1).reshape([-1])
                }
            }
        };
        self.buffers.iter().map(buffer).collect()
    }

    /// Returns the parts of a rank's buffers. Those without elements are left out.
    pub fn parts_of(&self, call: &Call, buffers: Vec<Tensor<1>>) -> Vec<Option<Tensor<1>>> {
        self.split(call, buffers, self.given)
    }

    /// Returns the parts of a collective's results, each in the dtype of the call.
    pub fn found(&self, call: &Call, results: Vec<Tensor<1>>, device: &Device) -> Vec<Option<Tensor<1>>> {
        let mut found = self.split(call, results, self.found);
        for at in &self.empty {
            found[*at] = Some(Tensor::zeros([0], (device, call.parts[*at].dtype)));
        }
        let rounded = |(part, like): (Option<Tensor<1>>, &PartShape)| {
            let to = if sums(call.kind) { like.sum } else { like.dtype };
            part.map(|part| if part.dtype() == to { part } else { part.cast(FloatDType::from(to)) })
        };
        found.into_iter().zip(&call.parts).map(rounded).collect()
    }

    fn split(&self, call: &Call, buffers: Vec<Tensor<1>>, rows: usize) -> Vec<Option<Tensor<1>>> {
        let mut parts = vec![None; call.parts.len()];
        for (Layout { parts: places, columns, .. }, buffer) in self.buffers.iter().zip(buffers) {
            if let [at] = places[..] {
                parts[at] = Some(buffer);
                continue;
            }
            let width: usize = columns.iter().sum();
            let mut start = 0;
            for (at, columns) in places.iter().zip(columns) {
                parts[*at] = Some(match rows {
                    1 => buffer.clone().narrow(0, start, *columns),
                    _ => buffer.clone().reshape([rows, width]).narrow(1, start, *columns).reshape([-1]),
                });
                start += columns;
            }
        }
        parts
    }
}

impl Layout {
    fn width(&self) -> usize {
        self.columns.iter().sum()
    }
}

/// Returns the dtype in which a part travels: its own where nothing is added.
fn wire(kind: Collective, like: &PartShape) -> DType {
    if sums(kind) { DType::F32 } else { like.dtype }
}

/// Returns whether a collective between devices computes sums.
fn sums(kind: Collective) -> bool {
    !matches!(kind, Collective::AllGather | Collective::Shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn numbers(part: &Option<Tensor<1>>) -> Option<Vec<f32>> {
        part.clone().map(|part| part.into_data().iter::<f32>().collect())
    }

    /// Parts in two dtypes, one that this rank lacks, one that no rank has, and one without elements.
    #[test]
    fn parts_come_back_from_the_buffers_that_they_were_joined_in() {
        let device = testing::device();
        let of = |elements: i64| Some(Tensor::arange(0..elements, &device).float());
        for (kind, found) in
            [(Collective::AllReduce, 1), (Collective::ReduceScatter, 1), (Collective::AllGather, 2)]
        {
            let half = |elements| PartShape { dtype: DType::F16, ..PartShape::flat(elements, DType::F32) };
            let like = [half(4), PartShape::flat(6, DType::F32), half(2), half(8), half(0)];
            let call = Call::new(kind, "the test", like.to_vec());
            let joined = Joined::of(&call, &[true, true, true, false, true], 2);
            let parts = vec![of(4).map(|part| part.cast(FloatDType::F16)), of(6), None, None, of(0)];
            let buffers = joined.join(parts.clone(), &device);
            let sizes: Vec<_> = buffers.iter().map(|buffer| (buffer.dims()[0], buffer.dtype())).collect();
            assert_eq!(sizes, joined.buffers().collect::<Vec<_>>(), "{kind}");
            let given = joined.parts_of(&call, buffers.clone());
            let expected = [numbers(&parts[0]), numbers(&parts[1]), Some(vec![0.0; 2]), None, None];
            assert_eq!(given.iter().map(numbers).collect::<Vec<_>>(), expected, "{kind}");

            let scatters = kind == Collective::ReduceScatter;
            let result = |buffer: Tensor<1>| match scatters {
                true => buffer.clone().narrow(0, 0, buffer.dims()[0] / 2),
                false => Tensor::cat(vec![buffer; found], 0),
            };
            let results: Vec<_> = buffers.into_iter().map(result).collect();
            let sizes: Vec<_> = results.iter().map(|result| (result.dims()[0], result.dtype())).collect();
            assert_eq!(sizes, joined.results().collect::<Vec<_>>(), "{kind}");
            let results = joined.found(&call, results, &device);
            let part = |part: &[f32]| {
                Some(if scatters { part[..part.len() / 2].into() } else { part.repeat(found) })
            };
            let [first, second] = [0, 1].map(|at| numbers(&parts[at]).unwrap());
            let expected = [part(&first), part(&second), part(&[0.0; 2]), None, Some(vec![])];
            assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), expected, "{kind}");
            let dtypes = results.iter().flatten().map(Tensor::dtype);
            let halves = if kind == Collective::AllGather { DType::F16 } else { DType::F32 };
            assert_eq!(dtypes.collect::<Vec<_>>(), [halves, DType::F32, halves, halves], "{kind}");
        }
    }
}
