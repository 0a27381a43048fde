//! Kernels compute what the language defines. The kernels are in ptx/semantics.cu, their references
//! here.

use crate::common::{Gpu, with};
use cudarc::driver::sys::CUresult;
use half::bf16;

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
    with(|gpu, module| {
        let n = 1000usize;
        let b: Vec<f32> = (0..1024).map(|i| (i % 37) as f32 * 0.125).collect();
        let (b_at, a_at, count) = (gpu.upload(&b), gpu.upload(&[0f32; 1024]), gpu.alloc(4));
        for launch in 0..2 {
            module
                .launch(
                    "common",
                    8,
                    128,
                    512,
                    vec![Parameters { a: a_at, b: b_at, n: n as i32, s: 2.0 }.into()],
                )
                .unwrap();
            module.launch("read_launches", 1, 1, 0, vec![count.into()]).unwrap();
            assert_eq!(gpu.download::<i32>(count, 1).unwrap()[0], 3 + 8 * (launch + 1));
        }
        let a: Vec<f32> = gpu.download(a_at, 1024).unwrap();
        for i in 0..n {
            let warp: f32 = (i / 32 * 32..i / 32 * 32 + 32).filter(|&j| j < n).map(|j| b[j]).sum();
            let wanted = 2.0 * warp + b[i].exp() * [1.0, 2.0, 3.0, 4.0][i & 3] / (1.0 + b[i]);
            assert!(
                (a[i] - wanted).abs() <= 1e-5 * wanted.abs(),
                "{i}: {} instead of {wanted}",
                a[i]
            );
        }
        [b_at, a_at, count].into_iter().for_each(|at| gpu.free(at));
    });
}

fn control_reference(i: i32, n: i32, other: i32, old: i32) -> i32 {
    let mut sum = 0i32;
    if i == 77 {
        return -1;
    }
    for j in 0..i {
        if j % 3 == 1 {
            continue;
        }
        if j * j > n {
            break;
        }
        let mut k = j;
        while k > 0 {
            if k & 1 == 1 {
                sum += k
            } else {
                sum ^= k
            }
            k >>= 1 + (i & 1);
        }
    }
    match i % 9 {
        0 => sum + 1,
        1 => sum - other,
        2 => (sum * 7) ^ 0x55,
        3 => sum ^ 0x55,
        4 => old,
        5 => !sum,
        6 => sum << 3,
        7 => sum / 5,
        _ => sum % 11,
    }
}

#[test]
fn control_flow() {
    with(|gpu, module| {
        let start: Vec<i32> = (0..256).collect();
        for n in [0, 100, 5000] {
            let at = gpu.upload(&start);
            module.launch("control", 1, 128, 0, vec![at.into(), n.into()]).unwrap();
            let got: Vec<i32> = gpu.download(at, 128).unwrap();
            let wanted: Vec<i32> = (0..128).map(|i| control_reference(i, n, 128 + i, i)).collect();
            assert_eq!(got, wanted);
            gpu.free(at);
        }
    });
}

#[test]
fn calls_of_device_functions() {
    with(|gpu, module| {
        let at = gpu.alloc(400);
        module.launch("calls", 1, 100, 0, vec![at.into()]).unwrap();
        let got: Vec<i32> = gpu.download(at, 100).unwrap();
        let both = |v: i32| v % 10 * 100 + v / 10 % 7 * 10 + v / 10 / 7;
        assert_eq!(got, (0..100).map(|i| both(i * 31 + 5) + i % 3).collect::<Vec<_>>());
        gpu.free(at);
    });
}

#[test]
fn votes_shuffles_and_reductions() {
    with(|gpu, module| {
        let at = gpu.alloc(12 * 64 * 4);
        module.launch("votes", 1, 64, 0, vec![at.into()]).unwrap();
        let got: Vec<u32> = gpu.download(at, 12 * 64).unwrap();
        for i in 0..64u32 {
            let (lane, base) = (i % 32, i / 32 * 32);
            let ballot = |f: &dyn Fn(u32) -> bool| {
                (0..32).fold(0u32, |bits, l| bits | u32::from(f(base + l)) << l)
            };
            let wanted = [
                ballot(&|t| t % 3 == 0),
                u32::from(base == 32),
                1,
                ballot(&|t| t / 5 == i / 5),
                0,
                (base..base + 32).sum(),
                (base as i32).wrapping_neg() as u32,
                if lane >= 3 { i - 3 } else { i },
                if lane % 8 + 5 < 8 { i + 5 } else { i },
                base + (lane & 16) + (i + 1) % 16,
                32,
                2,
            ];
            for (k, wanted) in wanted.into_iter().enumerate() {
                assert_eq!(got[k * 64 + i as usize], wanted, "result {k} of thread {i}");
            }
        }
        gpu.free(at);
    });
}

#[test]
fn atomics() {
    with(|gpu, module| {
        let at = gpu.upload(&[0i32, 0, -1, 0, 0, 0, 100, 0, 0, 0]);
        module.launch("atomics", 5, 96, 0, vec![at.into()]).unwrap();
        let got: Vec<i32> = gpu.download(at, 10).unwrap();
        assert_eq!(got[..3], [480, 95, -1]);
        assert_eq!(f32::from_bits(got[3] as u32), 2.5);
        assert_eq!(got[4..], [480 % 100, 7, -3, 0, 480, 480]);
        gpu.free(at);
    });
}

#[test]
fn matrix_product_through_shared_memory() {
    with(|gpu, module| {
        let a: Vec<bf16> =
            (0..256).map(|i| bf16::from_f32(((i * 37 % 101) as f32 - 50.0) / 16.0)).collect();
        let b: Vec<bf16> =
            (0..128).map(|i| bf16::from_f32(((i * 53 % 89) as f32 - 44.0) / 8.0)).collect();
        let (a_at, b_at, d_at, moved_at) =
            (gpu.upload(&a), gpu.upload(&b), gpu.alloc(512), gpu.alloc(256));
        module
            .launch(
                "matrix",
                1,
                32,
                0,
                vec![d_at.into(), a_at.into(), b_at.into(), moved_at.into()],
            )
            .unwrap();
        let d: Vec<f32> = gpu.download(d_at, 128).unwrap();
        for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
            // The last four elements of B were filled with zero by the copy.
            let term = |k: usize| {
                if column * 16 + k < 124 {
                    a[row * 16 + k].to_f64() * b[column * 16 + k].to_f64()
                } else {
                    0.0
                }
            };
            let start = f64::from([[1.0, 2.0], [3.0, 4.0]][row / 8][column % 2] as f32);
            let wanted = start + (0..16).map(term).sum::<f64>();
            let size = start + (0..16).map(|k| term(k).abs()).sum::<f64>();
            // Sixteen roundings of sums no larger than `size`.
            assert!(
                (f64::from(d[row * 8 + column]) - wanted).abs()
                    <= 16.0 * size * f64::from(f32::EPSILON) / 2.0
            );
        }
        let moved: Vec<u32> = gpu.download(moved_at, 64).unwrap();
        for lane in 0..32 {
            let (row, column) = (lane / 4, lane % 4 * 2);
            let wanted = u32::from(a[column * 16 + row].to_bits())
                | u32::from(a[(column + 1) * 16 + row].to_bits()) << 16;
            assert_eq!((moved[lane], moved[32 + lane]), (wanted, wanted), "lane {lane}");
        }
        [a_at, b_at, d_at, moved_at].into_iter().for_each(|at| gpu.free(at));
    });
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_one_another() {
    with(|gpu, module| {
        let (blocks, rounds) = (24u32, 3i32);
        let at = gpu.upload(&vec![0i32; (blocks * (rounds as u32 + 1)) as usize]);
        let mut pointers = [
            std::ptr::from_ref(&at).cast_mut().cast(),
            std::ptr::from_ref(&rounds).cast_mut().cast(),
        ];
        let function = module.function("grid_barrier");
        // SAFETY: the kernel's two arguments.
        unsafe {
            cudarc::driver::result::launch_cooperative_kernel(
                function,
                (blocks, 1, 1),
                (64, 1, 1),
                0,
                std::ptr::null_mut(),
                &mut pointers,
            )
        }
        .unwrap();
        let got: Vec<i32> = gpu.download(at, (blocks * (rounds as u32 + 1)) as usize).unwrap();
        let sum: i32 = (0..rounds)
            .map(|round| (0..blocks as i32).map(|block| block + round).sum::<i32>())
            .sum();
        // Each of the two warps' threads computed it; thread 0 wrote it.
        assert!(
            got[(blocks * rounds as u32) as usize..].iter().all(|&value| value == sum),
            "{got:?}"
        );
        gpu.free(at);
    });
}

/// The error of loading `image`, and the message about it.
fn refusal(session: &trail_cuda_emulator::Session, image: &str) -> (CUresult, String) {
    let refused = Gpu::new().load(image).map(drop).unwrap_err();
    (refused.0, session.take_findings().join("\n"))
}

#[test]
fn an_unsupported_instruction_is_refused_by_name() {
    let session = trail_cuda_emulator::session();
    let module = |line: &str| {
        format!(
            ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n.reg .f32 %f<3>;\n{line}\nret;\n}}\n"
        )
    };
    for line in ["submarine.rn.f32 %f1, %f2;", "add.rn.sideways.f32 %f1, %f2, %f2;"] {
        let (code, message) = refusal(&session, &module(line));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
        assert!(message.contains("line 6") && message.contains(line), "{message}");
    }
    assert!(Gpu::new().load(&module("add.rn.f32 %f1, %f2, %f2;")).is_ok());
    // A cubin is nobody's fault: the caller falls back to PTX.
    let (code, message) = refusal(&session, "\x7FELF");
    assert_eq!((code, message.as_str()), (CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, ""));
}
