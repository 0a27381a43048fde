//! The demo model's weights on the device, in the order of the kernels.

use crate::cuda::{Address, Bench, Buffer, Output};
use cudarc::driver::sys::CUdeviceptr;
use half::bf16;
use trail_runtime::cuda::launch::{self, Operands, RowOrder, Sources};
use trail_runtime::cuda::plan::gemm::{End, GemmPlan, Product, gemm};
use trail_runtime::cuda::plan::shuffle::{FEATURES, WIDTH};
use trail_runtime::model::{Dtype, Model, Tensor};

/// The products of a layer.
pub(crate) struct Layer {
    pub(crate) qkv: Output,
    pub(crate) o: Output,
    pub(crate) gate_up: Output,
    pub(crate) down: Output,
}

pub(crate) struct Weights {
    /// `[vocab, d]`, as the file has it.
    pub(crate) embed: Buffer,
    pub(crate) layers: Vec<Layer>,
    /// Attention's and the MLP's norm of each layer, one after the other; then the last. `[d]` each.
    pub(crate) norms: Vec<Buffer>,
    pub(crate) lm_head: Output,
}

impl Weights {
    pub(crate) fn new(bench: &Bench, model: &Model) -> Weights {
        let weights = &model.weights;
        let pairs = RowOrder::RotationPairs { head_dim: model.config.head_dim };
        let layers = weights.layers.iter().map(|layer| Layer {
            qkv: shuffled(bench, &[&layer.q, &layer.k, &layer.v], pairs),
            o: shuffled(bench, &[&layer.o], RowOrder::Plain),
            gate_up: shuffled(bench, &[&layer.gate, &layer.up], RowOrder::Alternating),
            down: shuffled(bench, &[&layer.down], RowOrder::Plain),
        });
        let norms =
            weights.layers.iter().flat_map(|layer| [&layer.attention_norm, &layer.mlp_norm]);
        Weights {
            embed: bench.input(weights.embed.bytes()),
            layers: layers.collect(),
            norms: norms.chain([&weights.norm]).map(|norm| narrowed(bench, norm)).collect(),
            lm_head: shuffled(bench, &[&weights.lm_head], RowOrder::Plain),
        }
    }
}

/// A norm's weight as the kernels take it; the file's is bf16, so nothing is lost.
fn narrowed(bench: &Bench, norm: &[f32]) -> Buffer {
    let narrow: Vec<bf16> = norm.iter().map(|&value| bf16::from_f32(value)).collect();
    assert!(narrow.iter().zip(norm).all(|(narrow, &value)| narrow.to_f32() == value));
    bench.input(&narrow)
}

/// `sources`, stacked, in fragment order.
fn shuffled(bench: &Bench, sources: &[&Tensor], order: RowOrder) -> Output {
    let rows: usize = sources.iter().map(|tensor| tensor.rows).sum();
    let width = sources[0].cols;
    assert!(sources.iter().all(|tensor| tensor.dtype == Dtype::Bf16 && tensor.cols == width));
    let mut buffers: Vec<Buffer> =
        sources.iter().map(|tensor| bench.input(tensor.bytes())).collect();
    let mut on_device: Sources = [(0, 0); 3];
    for ((source, buffer), tensor) in on_device.iter_mut().zip(&mut buffers).zip(sources) {
        *source = (buffer.at(bench), tensor.rows);
    }
    let mut out = bench.output(rows.next_multiple_of(FEATURES) * width.next_multiple_of(WIDTH) * 2);
    let to = out.at(bench);
    let (device, stream) = (&bench.device, &bench.stream);
    // SAFETY: the buffers have the extents given; the sources are freed in stream order.
    unsafe { launch::shuffle(device, stream, Dtype::Bf16, on_device, width, order, to) }.unwrap();
    out
}

/// A planned product and its workspace.
pub(crate) struct Gemm {
    pub(crate) plan: GemmPlan,
    partials: Buffer,
    arrivals: Buffer,
}

impl Gemm {
    pub(crate) fn new(bench: &Bench, end: End, rows: usize, features: usize, width: usize) -> Gemm {
        let plan = gemm(bench.device.chip(), Product { end, rows, features, width });
        let partials = bench.raw(plan.partial_floats * 4);
        Gemm { plan, partials, arrivals: bench.input(&vec![0u32; plan.arrivals]) }
    }

    pub(crate) fn operands(&mut self, bench: &Bench, x: CUdeviceptr, w: &mut Output) -> Operands {
        Operands {
            x,
            w: w.at(bench),
            row_list: 0,
            partials: self.partials.at(bench),
            arrivals: self.arrivals.at(bench),
        }
    }
}
