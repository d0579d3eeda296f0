//! Tensors in groups, each of which one kernel computes.
//!
//! The kernel is given how many elements each tensor has, and finds from it which cubes compute the tensor, and where it ends.
//! In a kernel, the `len` of a slice counts the whole buffer, which may be longer: on CUDA, Burn pads the rows of products.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::UNITS;
#[cfg(feature = "cuda")]
use super::cuda;

/// The elements of a tensor that one cube computes.
pub(crate) const PART: usize = 16 * UNITS as usize;

/// The most tensors of one launch of a kernel of CubeCL, which repeats its body for each.
const TOGETHER: usize = 32;

/// Buffers of a kernel besides the tensors: those that all of them share, and the scalars.
const OTHERS: usize = 3;

/// Returns the places of the tensors that are not empty, in groups that are alike, in order within each kind. A tensor
/// has `buffers` arguments in the kernel, and `constants` of its own.
pub(crate) fn groups<K: PartialEq>(
    tensors: &[CubeTensor],
    (buffers, constants): (usize, usize),
    kind: impl Fn(usize) -> K,
) -> Vec<Vec<usize>> {
    let Some(first) = tensors.first() else { return Vec::new() };
    let together = most_together(first, buffers, constants);
    let mut kinds: Vec<(K, Vec<usize>)> = Vec::new();
    for at in (0..tensors.len()).filter(|at| tensors[*at].meta.num_elements() > 0) {
        let kind = kind(at);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, places)) => places.push(at),
            None => kinds.push((kind, vec![at])),
        }
    }
    let chunks = kinds.iter().flat_map(|(_, places)| places.chunks(together));
    chunks.map(<[usize]>::to_vec).collect()
}

/// Returns the most tensors of one launch.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
fn most_together(like: &CubeTensor, buffers: usize, constants: usize) -> usize {
    #[cfg(feature = "cuda")]
    if cuda::serves(&like.device) {
        return cuda::most(buffers, constants);
    }
    let most = (like.client.properties().hardware.max_bindings as usize).saturating_sub(OTHERS);
    (most / buffers).clamp(1, TOGETHER)
}

/// Returns the cube after those that compute a tensor of `length` elements, of which `begin` is the first.
#[cube]
#[allow(clippy::manual_div_ceil)] // That of CubeCL takes no number that is known when the kernel is compiled.
pub(crate) fn end_of(begin: usize, length: usize, #[comptime] part: usize) -> usize {
    begin + (length + part - 1) / part
}
