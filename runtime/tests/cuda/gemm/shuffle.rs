//! The weight shuffle: bit for bit its expected's.

use half::{bf16, f16};
use trail_runtime::cuda::launch::{self, RowOrder};
use trail_runtime::model::Dtype;
use trail_test_support::cuda::{Address, Bench, Chance};
use trail_test_support::gemm::{self as reference, Matrix};

/// Sources of `rows` rows each, shuffled on the device; the expected's bits beside them.
fn check(dtype: Dtype, rows: &[usize], width: usize, order: RowOrder) {
    let bench = Bench::open();
    let mut chance = Chance(rows.iter().sum::<usize>() as u64 + width as u64);
    let total: usize = rows.iter().sum();
    let data: Vec<f32> = (0..total * width).map(|_| chance.unit() * 3.0).collect();
    let stored: Vec<u8> = match dtype {
        Dtype::F32 => bytemuck::cast_slice(&data).to_vec(),
        Dtype::F16 => data.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        _ => data.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
    };
    let narrow = |x: &f32| match dtype {
        Dtype::F16 => bf16::from_f32(f16::from_f32(*x).to_f32()),
        _ => bf16::from_f32(*x),
    };
    let matrix = Matrix { data: data.iter().map(narrow).collect(), rows: total, width };
    let padded = total.next_multiple_of(128);
    let reference_order = match order {
        RowOrder::Plain => reference::plain_order(total, padded),
        RowOrder::RotationPairs { head_dim } => reference::rotation_order(total, head_dim, padded),
        RowOrder::Alternating => reference::alternating_order(rows[0], padded),
    };
    let padded_width = width.next_multiple_of(256);
    let expected = reference::fragment_order(&matrix, &reference_order, padded_width);

    let row_bytes = stored.len() / total;
    let mut begin = 0;
    let mut sources = launch::Sources::default();
    let mut buffers = Vec::new();
    for (source, &count) in sources.iter_mut().zip(rows) {
        let mut buffer = bench.input(&stored[begin * row_bytes..][..count * row_bytes]);
        *source = (buffer.at(&bench), count);
        buffers.push(buffer);
        begin += count;
    }
    let mut out = bench.output(padded * padded_width * 2);
    let to = out.at(&bench);
    let launch = launch::shuffle(dtype, sources, width, order, to);
    // SAFETY: the buffers have the extents given, and live until the read below.
    unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
    let found: Vec<u16> = bench.read(&out);
    let expected: Vec<u16> = expected.iter().map(|value| value.to_bits()).collect();
    assert!(found == expected, "{dtype:?} {rows:?} x {width} {order:?}");
}

#[test]
fn rows_as_they_are() {
    check(Dtype::Bf16, &[130], 264, RowOrder::Plain);
    check(Dtype::F16, &[24], 40, RowOrder::Plain);
    check(Dtype::F32, &[128], 256, RowOrder::Plain);
}

#[test]
fn rotation_pairs() {
    check(Dtype::Bf16, &[192, 64, 64], 72, RowOrder::RotationPairs { head_dim: 64 });
    check(Dtype::F32, &[384, 128, 128], 24, RowOrder::RotationPairs { head_dim: 128 });
    check(Dtype::F16, &[48, 16, 16], 8, RowOrder::RotationPairs { head_dim: 16 });
}

#[test]
fn gate_and_up() {
    check(Dtype::Bf16, &[136, 136], 48, RowOrder::Alternating);
    check(Dtype::F16, &[20, 20], 264, RowOrder::Alternating);
}
