//! Naive twins of the matrix kernels, in f64.

/// Row-major `[rows, width]` into fragment order `[rows/16][width/16][32 lanes][8]`, as mma m16n8k16 wants its A operand.
pub(crate) fn fragment_order(row_major: &[f32], rows: usize, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(row_major.len());
    for tile in 0..rows / 16 {
        for step in 0..width / 16 {
            for lane in 0..32 {
                for element in 0..8 {
                    let row = tile * 16 + lane / 4 + (element / 2 % 2) * 8;
                    let column = step * 16 + lane % 4 * 2 + element % 2 + (element / 4) * 8;
                    out.push(row_major[row * width + column]);
                }
            }
        }
    }
    out
}
