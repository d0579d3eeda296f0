//! Maps in 8 bits by NVIDIA's library.
//!
//! On Ada and Hopper it multiplies operands whose runs lie along the axis that is summed. So each operand is written as the
//! product needs it, as it stands or transposed; the gradient of a result is written both ways, by one kernel.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::rounding::{most, rounded};
use super::{Fp8, INFINITE, MOST_SCALE, MULTIPLE, TOP};
use crate::cube::{Spec, contiguous, cuda, empty, run, run_many};
use crate::cublas::{self, Added, Codes, Format};
use crate::off::Kernel;

/// Returns whether the library multiplies 8-bit numbers in place of these: on a device of compute capability 8.9 or above.
pub fn multiplies(x: &FloatTensor<Cube>) -> bool {
    let device = x.device();
    matches!(x.dtype(), DType::BF16 | DType::F16)
        && x.shape().num_elements() > 0
        && !Kernel::Products.is_off()
        && cublas::is_on(&device)
        && cuda::capability(&device).is_some_and(|capability| capability >= (8, 9))
}

/// Returns `x · weight + bias` for `[rows, in]`, `[in, out]` and `[out]`.
pub fn map(
    x: FloatTensor<Cube>,
    weight: FloatTensor<Cube>,
    bias: Option<FloatTensor<Cube>>,
) -> FloatTensor<Cube> {
    let output = Spec::new([x.shape()[0], weight.shape()[1]], x.dtype());
    let [y] = run([Some(x), Some(weight), bias].into_iter().flatten().collect(), [output], |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = || inputs.next().expect("a map has an input and a weight");
        let (x, weight) = (Operand::new(next(), Fp8::E4m3), Operand::new(next(), Fp8::E4m3));
        let added = inputs.next().map_or(Added::Nothing, Added::Bias);
        let ([of_x, _], [_, of_weight]) = (x.codes([true, false]), weight.codes([false, true]));
        [product((of_x, &x, false), (of_weight, &weight, true), added)]
    });
    y
}

/// Returns the gradients of the input and the weight: see `Fp8Products::fp8_gradients`.
pub fn gradients(
    x: Option<FloatTensor<Cube>>,
    weight: Option<FloatTensor<Cube>>,
    grad: FloatTensor<Cube>,
) -> [Option<FloatTensor<Cube>>; 2] {
    let (dtype, [rows, to]) = (grad.dtype(), grad.shape().dims());
    let of_x = weight.as_ref().map(|weight| Spec::new([rows, weight.shape()[0]], dtype));
    let of_weight = x.as_ref().map(|x| Spec::new([x.shape()[1], to], dtype));
    let [to_x, to_weight] = [of_x.is_some(), of_weight.is_some()];
    if !to_x && !to_weight {
        return [None, None];
    }
    let outputs = [of_x, of_weight].into_iter().flatten().collect();
    let inputs = [Some(grad), weight, x].into_iter().flatten().collect();
    let mut found = run_many(inputs, outputs, move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = |format| Operand::new(inputs.next().expect("as many inputs as gradients"), format);
        let grad = next(Fp8::E5m2);
        let [plain, turned] = grad.codes([to_x, to_weight]);
        let mut found = Vec::new();
        if to_x {
            let weight = next(Fp8::E4m3);
            let [of_weight, _] = weight.codes([true, false]);
            found.push(product((plain, &grad, false), (of_weight, &weight, false), Added::Nothing));
        }
        if to_weight {
            let x = next(Fp8::E4m3);
            let [_, of_x] = x.codes([false, true]);
            found.push(product((of_x, &x, true), (turned, &grad, true), Added::Nothing));
        }
        found
    });
    let of_weight = if to_weight { found.pop() } else { None };
    [found.pop(), of_weight]
}

/// An operand: its codes, its numbers, and whether the product reads their transpose.
type Of<'a> = (Option<Codes>, &'a Operand, bool);

/// Multiplies `lhs` by the transpose of `rhs`, of their numbers if the library has no algorithm for their codes.
fn product(lhs: Of, rhs: Of, added: Added) -> CubeTensor {
    let dtype = lhs.1.x.dtype;
    let [of_lhs, of_rhs] = [&lhs.0, &rhs.0].map(|codes| codes.as_ref().expect("they were written"));
    let bias = if let Added::Bias(bias) = &added { Some(bias.clone()) } else { None };
    cublas::multiply_codes(of_lhs, of_rhs, bias, dtype).unwrap_or_else(|| {
        let [lhs, mut rhs] = [lhs, rhs].map(|(_, operand, turned)| {
            let mut x = rounded(operand.x.clone(), operand.format);
            if turned {
                x.meta.swap(0, 1);
            }
            x
        });
        rhs.meta.swap(0, 1);
        cublas::multiply(lhs, rhs, added, dtype)
    })
}

/// A matrix whose numbers are rounded.
struct Operand {
    x: CubeTensor,
    format: Fp8,
}

impl Operand {
    fn new(x: CubeTensor, format: Fp8) -> Self {
        Self { x, format }
    }

    /// Writes the codes as they stand, transposed, or both. A transposed row ends with zeros up to a multiple of 16.
    fn codes(&self, written: [bool; 2]) -> [Option<Codes>; 2] {
        let (x, format) = (&self.x, self.format);
        let [rows, columns] = x.meta.shape().dims();
        let (parts, length) = (most(x), rows.next_multiple_of(MULTIPLE));
        let shapes = [[rows, columns], [columns, length]];
        let [plain, turned] = [0, 1].map(|way| written[way].then(|| empty(x, shapes[way], DType::U8)));
        let scale = empty(x, [1], DType::F32);
        let across = columns.div_ceil(TILE);
        let blocks = across * rows.div_ceil(TILE);
        let words = [rows, columns, length, parts.meta.num_elements(), across].map(|number| number as u64);
        let writes: Vec<_> = [plain.as_ref(), turned.as_ref(), Some(&scale)].into_iter().flatten().collect();
        let form = Form { dtype: x.dtype, format, written };
        cuda::launch(form, blocks, &[x.clone(), parts], &writes, words.into());
        let format = match format {
            Fp8::E4m3 => Format::E4m3,
            Fp8::E5m2 => Format::E5m2,
        };
        [plain, turned].map(|codes| codes.map(|codes| Codes { codes, format, scale: scale.clone() }))
    }
}

/// The rows and columns of a block.
const TILE: usize = 64;

/// What the kernel's text depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Form {
    dtype: DType,
    format: Fp8,
    /// As they stand, and transposed.
    written: [bool; 2],
}

impl cuda::Form for Form {
    const UNITS: u32 = 256;

    /// Such as `codes_bf16_e4m3_turned`.
    fn entrypoint(&self) -> String {
        let dtype = if self.dtype == DType::F16 { "f16" } else { "bf16" };
        let format = if self.format == Fp8::E4m3 { "e4m3" } else { "e5m2" };
        let written = match self.written {
            [true, true] => "both",
            [true, false] => "plain",
            [false, _] => "turned",
        };
        format!("codes_{dtype}_{format}_{written}")
    }

    fn text(&self) -> String {
        let (header, dtype) = match self.dtype {
            DType::F16 => ("fp16", "__half"),
            _ => ("bf16", "__nv_bfloat16"),
        };
        let [plain, turned] = self.written;
        let mut parameters = vec![format!("const {dtype} *x"), "const unsigned *parts".into()];
        parameters.extend(plain.then(|| "unsigned char *plain".into()));
        parameters.extend(turned.then(|| "unsigned char *turned".into()));
        parameters.push("float *scale".into());
        let format = self.format;
        let defined = [
            ("MANTISSA", format.mantissa()),
            ("LARGEST", format.largest()),
            ("SMALLEST", format.smallest()),
            ("INFINITE", INFINITE),
            ("TOP", TOP),
            ("MOST_SCALE", MOST_SCALE),
            ("PLAIN", plain.into()),
            ("TURNED", turned.into()),
            ("IS_F16", u32::from(self.dtype == DType::F16)),
        ];
        let defined = defined.map(|(name, value)| format!("#define {name} {value}\n")).concat();
        let body = include_str!("bytes.cu");
        let body = body.replace("KERNEL", &self.entrypoint()).replace("PARAMETERS", &parameters.join(", "));
        format!("#include <cuda_{header}.h>\n#define T {dtype}\n{defined}\n{body}")
    }
}
