//! cudarc finds the stand-in, loads PTX and gets right answers.

mod common;

use common::Gpu;

trail_cuda_emulator::on_emulator!();

#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    a: u64,
    b: u64,
    n: i32,
    s: f32,
}

#[test]
fn a_kernel_with_everything_common() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(include_str!("ptx/smoke.ptx")).unwrap();
    let n = 1000;
    let b: Vec<f32> = (0..1024).map(|i| (i % 37) as f32 * 0.125).collect();
    let (b_at, a_at) = (gpu.upload(&b), gpu.upload(&vec![0f32; 1024]));
    module.launch("axpy", 8, 128, 512, vec![Parameters { a: a_at, b: b_at, n, s: 2.0 }.into()]).unwrap();
    let a: Vec<f32> = gpu.download(a_at, 1024).unwrap();
    for i in (8..n as usize).filter(|i| i / 32 != n as usize / 32) {
        let warp: f32 = (i / 32 * 32..i / 32 * 32 + 32).map(|j| b[j]).sum();
        let wanted = 2.0 * warp + b[i].exp() * [1.0, 2.0, 3.0, 4.0][i & 3] / (1.0 + b[i]);
        assert!((a[i] - wanted).abs() <= 1e-5 * wanted.abs(), "{i}: {} instead of {wanted}", a[i]);
    }
    gpu.free(a_at);
    gpu.free(b_at);
    drop((module, gpu, session));
}
