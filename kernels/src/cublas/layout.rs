//! Tensors as the library's matrices.
//!
//! The library's matrices stand column by column. A matrix of ours, which stands row by row, is to the library its own
//! transpose; so for `D = L · R` it computes `Dᵀ = Rᵀ · Lᵀ`, and neither is copied. An operand of ours that stands column by
//! column, a transposed view, is one that the library transposes as it reads.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

/// A product that the library can compute: what its choice of an algorithm depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    /// The number of products.
    pub batch: usize,
    pub lhs: Matrix,
    pub rhs: Matrix,
    pub out: Matrix,
    /// Of the operands, and of the product.
    pub dtypes: [DType; 2],
    pub adds: Adds,
    /// Of the operands, if they are [codes](super::Codes).
    pub formats: Option<[Format; 2]>,
}

/// A format of 8 bits, with the library's number: `CUDA_R_8F_E4M3` and `CUDA_R_8F_E5M2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    E4m3 = 28,
    E5m2 = 29,
}

/// What is added to a product, or computed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adds {
    Nothing,
    /// A vector, to each row.
    Bias,
    /// A tensor that stands as the product does.
    Total,
    /// Nothing; but the sums of the right operand over its rows are computed too.
    Sums,
}

/// How the matrices of one operand stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether it stands column by column.
    pub turned: bool,
    /// The elements from the start of one row, or column if it is turned, to the start of the next.
    pub leading: usize,
    /// The elements from one matrix to the next; 0 if there is only one.
    pub apart: usize,
    /// A power of two, in bytes, of which the place of its first element is a multiple.
    pub aligned: u64,
}

/// The largest alignment that the library asks for.
const ALIGNED: u64 = 256;

/// One axis of three tensors: its length, and the elements from one index to the next in each. A broadcast one has 0.
type Axis = (usize, [usize; 3]);

impl Layout {
    /// Returns the product of `[.., m, k]` and `[.., k, n]`, of equal rank, as the library computes it, or `None` if the
    /// operands stand as no matrices do. `out` is `[.., m, n]`, and `more` what is read or written beside it, as `adds` says.
    pub fn of(
        [lhs, rhs]: [&CubeTensor; 2],
        out: &CubeTensor,
        adds: Adds,
        more: Option<&CubeTensor>,
    ) -> Option<Self> {
        let tensors = [lhs, rhs, out];
        let shapes = tensors.map(|x| x.meta.shape().as_slice().to_vec());
        let strides = tensors.map(|x| x.meta.strides().to_vec());
        let axes = shapes[2].len() - 2;
        let [columns, depth] = [shapes[2][axes + 1], shapes[0][axes + 1]];
        let apart = |of: usize, axis: usize| if shapes[of][axis] == 1 { 0 } else { strides[of][axis] };
        let leading: Vec<Axis> =
            (0..axes).map(|axis| (shapes[2][axis], [0, 1, 2].map(|of| apart(of, axis)))).collect();
        let row: Axis = (shapes[2][axes], [strides[0][axes], 0, strides[2][axes]]);

        // If one matrix multiplies all, their rows are those of one matrix, if they stand so.
        let one_rhs = shapes[1][..axes].iter().all(|length| *length == 1);
        let all_rows = leading.iter().copied().chain([row]).collect();
        let folded = if one_rhs { merged(all_rows) } else { None };
        let ((rows, of_rows), (batch, batches)) = match folded {
            Some(rows) => (rows, (1, [0; 3])),
            None => (row, merged(leading)?),
        };
        let mut aligned = tensors.map(alignment);
        // The library knows one alignment for the result and all that has its columns.
        aligned[2] = more.map_or(aligned[2], |more| aligned[2].min(alignment(more)));
        let matrix = |of: usize, lengths, strides| Matrix::of(lengths, strides, batches[of], aligned[of]);
        Some(Self {
            rows,
            columns,
            depth,
            batch,
            lhs: matrix(0, [rows, depth], [of_rows[0], strides[0][axes + 1]])?,
            rhs: matrix(1, [depth, columns], [strides[1][axes], strides[1][axes + 1]])?,
            out: matrix(2, [rows, columns], [of_rows[2], strides[2][axes + 1]]).filter(|out| !out.turned)?,
            dtypes: [lhs.dtype, out.dtype],
            adds,
            formats: None,
        })
    }
}

/// Returns axes as one, if in each tensor they stand as one does.
fn merged(axes: Vec<Axis>) -> Option<Axis> {
    let long = axes.into_iter().filter(|(length, _)| *length > 1);
    long.map(Some)
        .reduce(|outer, inner| {
            let ((outer, apart), (length, strides)) = (outer?, inner?);
            let one = (0..3).all(|of| apart[of] == length * strides[of]);
            one.then_some((outer * length, strides))
        })
        .unwrap_or(Some((1, [0; 3])))
}

/// Returns the largest power of two up to [`ALIGNED`] of which the place of a tensor is a multiple: CubeCL's buffers are
/// aligned to more.
fn alignment(x: &CubeTensor) -> u64 {
    let start = x.handle.offset_start.unwrap_or(0);
    1 << start.trailing_zeros().min(ALIGNED.ilog2())
}

impl Matrix {
    /// Returns how a matrix stands, or `None` if neither its rows nor its columns are runs of elements.
    fn of(
        [rows, columns]: [usize; 2],
        [by_row, by_column]: [usize; 2],
        apart: usize,
        aligned: u64,
    ) -> Option<Self> {
        // The stride of an axis of length 1 says nothing.
        let runs = |length, stride| length == 1 || stride == 1;
        let leading = |length, stride, run| if length == 1 { run } else { stride };
        let straight = leading(rows, by_row, columns);
        let turned = leading(columns, by_column, rows);
        let (turned, leading) = match () {
            () if runs(columns, by_column) && straight >= columns => (false, straight),
            () if runs(rows, by_row) && turned >= rows => (true, turned),
            () => return None,
        };
        Some(Self { turned, leading, apart, aligned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(lengths: [usize; 2], strides: [usize; 2]) -> Option<(bool, usize)> {
        Matrix::of(lengths, strides, 0, ALIGNED).map(|matrix| (matrix.turned, matrix.leading))
    }

    #[test]
    fn a_matrix_stands_by_rows_or_by_columns() {
        assert_eq!(matrix([3, 5], [5, 1]), Some((false, 5)));
        assert_eq!(matrix([3, 5], [8, 1]), Some((false, 8)), "padded rows");
        assert_eq!(matrix([3, 5], [1, 3]), Some((true, 3)));
        assert_eq!(matrix([3, 5], [1, 64]), Some((true, 64)), "padded columns");
        assert_eq!(matrix([3, 5], [10, 2]), None, "each second element");
        assert_eq!(matrix([3, 5], [0, 1]), None, "one row, repeated");
    }

    #[test]
    fn the_stride_of_a_single_row_or_column_says_nothing() {
        assert_eq!(matrix([1, 5], [77, 1]), Some((false, 5)));
        assert_eq!(matrix([5, 1], [1, 77]), Some((false, 1)));
        assert_eq!(matrix([5, 1], [4, 77]), Some((false, 4)), "a column of a wider matrix");
        assert_eq!(matrix([1, 5], [77, 4]), Some((true, 4)));
        assert_eq!(matrix([1, 1], [0, 0]), Some((false, 1)));
    }

    #[test]
    fn axes_that_stand_as_one_are_one() {
        let axes = |axes: &[(usize, [usize; 3])]| merged(axes.to_vec());
        assert_eq!(axes(&[]), Some((1, [0; 3])));
        assert_eq!(axes(&[(2, [60, 0, 40]), (3, [20, 0, 12])]), None, "the last is padded");
        assert_eq!(axes(&[(2, [60, 0, 36]), (3, [20, 0, 12])]), Some((6, [20, 0, 12])));
        assert_eq!(axes(&[(2, [60, 0, 36]), (1, [7, 7, 7]), (3, [20, 0, 12])]), Some((6, [20, 0, 12])));
        assert_eq!(axes(&[(2, [60, 9, 36]), (3, [20, 0, 12])]), None, "repeated along one of them");
    }
}
