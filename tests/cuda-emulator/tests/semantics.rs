//! Kernels compute what the language says. The kernels are in ptx/semantics.cu; each has its twin here.

mod common;

use common::Gpu;
use half::{bf16, f16};

trail_cuda_emulator::on_emulator!();

const SEMANTICS: &str = include_str!("ptx/semantics.ptx");

#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    a: u64,
    b: u64,
    n: i32,
    s: f32,
}

/// Runs `body` with a context and the module.
fn with(body: impl FnOnce(&Gpu, &common::Module)) {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    body(&gpu, &module);
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

fn control_twin(i: i32, n: i32, other: i32, old: i32) -> i32 {
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
            let wanted: Vec<i32> = (0..128).map(|i| control_twin(i, n, 128 + i, i)).collect();
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

/// Values with a bit of everything: small, huge, subnormal, infinite, NaN.
fn inputs() -> Vec<u32> {
    let special = [
        0,
        1,
        0x8000_0000,
        0x3F80_0000,
        0xBF80_0000,
        0x7F80_0000,
        0x7FC0_0000,
        0x0080_0000,
        0x0000_1234,
        0x4B00_0001,
        0x4F7F_FFFF,
        0xFFFF_FFFF,
    ];
    let mut random = 0x1234_5678u32;
    let mut values: Vec<u32> = (0..192)
        .map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Exponents near 0, so that products and sums stay in range.
            if random & 0x100 == 0 { random & 0x83FF_FFFF | 0x3C00_0000 } else { random }
        })
        .collect();
    for (at, value) in special.into_iter().enumerate() {
        values[at] = value;
        values[64 + (at * 5 + 3) % 60] = value;
        values[128 + (at * 7 + 1) % 60] = value;
    }
    values
}

/// What `arithmetic` writes for one thread.
fn arithmetic_twin(a: u32, b: u32, c: u32) -> Vec<u32> {
    let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
    let joined = u64::from(b) << 32 | u64::from(a);
    let d = f64::from(x) * f64::from(y) + f64::from(z);
    let d = if (f64::from(x) * f64::from(y)).is_finite() {
        f64::from(x).mul_add(f64::from(y), f64::from(z))
    } else {
        d
    };
    let perm = (0..4)
        .fold(0u32, |r, k| r | ((joined >> (8 * (c >> (4 * k) & 7))) as u32 & 0xFF) << (8 * k));
    let f32_of_half = f16::from_bits(c as u16).to_f32();
    // The exact values, for the directed roundings.
    let up = |exact: f64| {
        let near = exact as f32;
        if f64::from(near) < exact { near.next_up() } else { near }
    };
    // A sum of two f32 may have more bits than f64: its error decides where f64 sees none.
    let down_sum = |x: f64, y: f64| {
        let sum = x + y;
        let error = if x.abs() >= y.abs() { y - (sum - x) } else { x - (sum - y) };
        let near = sum as f32;
        let beyond = f64::from(near) > sum || f64::from(near) == sum && error < 0.0;
        if beyond { near.next_down() } else { near }
    };
    let product = f64::from(x) * f64::from(y);
    vec![
        ((u64::from(a) * u64::from(b)) >> 32) as u32,
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
        a / (b | 1),
        (a as i32).wrapping_rem((b | 1) as i32) as u32,
        a.count_ones(),
        a.leading_zeros(),
        a.reverse_bits(),
        if a == 0 { 0 } else { a.trailing_zeros() + 1 },
        perm,
        (joined << (c & 31) >> 32) as u32,
        (joined >> c.min(32)) as u32,
        (a & b) | (!a & c),
        (u64::from(a).wrapping_mul(u64::from(b)).wrapping_add(u64::from(c)) >> 17) as u32,
        ((i64::from(a as i32) * i64::from(b as i32)) >> 40) as u32,
        x.mul_add(y, z).to_bits(),
        (x / y).to_bits(),
        x.sqrt().to_bits(),
        0,
        0,
        0,
        down_sum(f64::from(x), f64::from(y)).to_bits(),
        up(product).to_bits(),
        x as i32 as u32,
        y.round_ties_even() as i32 as u32,
        z as u32,
        (a as i32 as f32).to_bits(),
        (b as f32).to_bits(),
        u32::from(bf16::from_f32(x).to_bits()),
        u32::from(f16::from_f32(y).to_bits()),
        f32_of_half.to_bits(),
        0,
        u32::from((f16::from_bits(a as u16) + f16::from_bits(b as u16)).to_bits()),
        x.floor().to_bits(),
        y.round_ties_even().to_bits(),
        u32::from(x < y),
        u32::from(x < y || x.is_nan() || y.is_nan()),
        if x > 0.0 { x.min(1.0) } else { 0.0 }.to_bits(),
        (d.to_bits() >> 32) as u32,
        d.to_bits() as u32,
        ((a as i16) >> 3) as i32 as u32,
        u32::from((a.wrapping_add(b)) as u8),
        (i32::from(a as i8) * 3) as u32,
    ]
}

/// Which results of `arithmetic` are floating-point: 32 bits, 16 bits of bf16 or f16, or the halves of an f64.
fn is_nan(k: usize, bits: u32) -> bool {
    match k {
        14..=21 | 25..=26 | 29 | 32..=33 | 36 => f32::from_bits(bits).is_nan(),
        27 | 30 => bf16::from_bits(bits as u16).is_nan(),
        28 | 31 => f16::from_bits(bits as u16).is_nan(),
        37 => bits & 0x7FF8_0000 == 0x7FF8_0000,
        _ => false,
    }
}

#[test]
fn arithmetic_agrees_with_the_host() {
    with(|gpu, module| {
        let values = inputs();
        let (from, to) = (gpu.upload(&values), gpu.alloc(42 * 64 * 4));
        module.launch("arithmetic", 1, 64, 0, vec![to.into(), from.into()]).unwrap();
        let got: Vec<u32> = gpu.download(to, 42 * 64).unwrap();
        for i in 0..64 {
            let (a, b, c) = (values[i], values[64 + i], values[128 + i]);
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            for (k, wanted) in arithmetic_twin(a, b, c).into_iter().enumerate() {
                let got = got[k * 64 + i];
                let exact = f64::from(x) * f64::from(y) + f64::from(z);
                let says = || {
                    format!("result {k} of {a:#x} {b:#x} {c:#x}: {got:#x} instead of {wanted:#x}")
                };
                match k {
                    // The lesser and the greater: the other where one is NaN.
                    17 | 18 => {
                        let wanted = if k == 17 { x.min(y) } else { x.max(y) };
                        assert!(
                            f32::from_bits(got) == wanted || wanted.is_nan() && is_nan(k, got),
                            "{}",
                            says()
                        );
                    }
                    // Towards zero: never beyond the exact value, and within one step of it.
                    19 if exact.is_finite() && exact.abs() < f64::from(f32::MAX) => {
                        let got = f32::from_bits(got);
                        let next = if exact > 0.0 { got.next_up() } else { got.next_down() };
                        let slack = exact.abs() * 1e-15;
                        assert!(
                            f64::from(got).abs() <= exact.abs() + slack
                                && f64::from(next).abs() >= exact.abs() - slack,
                            "{}",
                            says()
                        );
                    }
                    30 => {
                        let [p, q, r] =
                            [a, b, c].map(|v| f64::from(bf16::from_bits(v as u16).to_f32()));
                        let wanted = p * q + r;
                        let got = f64::from(bf16::from_bits(got as u16).to_f32());
                        assert!(
                            got == wanted
                                || got.is_nan() && wanted.is_nan()
                                || (got - wanted).abs() <= wanted.abs() / 256.0 + 1e-40
                                || got.is_infinite(),
                            "{}",
                            says()
                        );
                    }
                    19 => {}
                    // NaN has no certain bits; f64's lower half is then free too.
                    38 if is_nan(37, got_high(&got_all(gpu, to), i)) => {}
                    _ if is_nan(k, wanted) => assert!(is_nan(k, got), "{}", says()),
                    _ => assert_eq!(got, wanted, "{}", says()),
                }
            }
        }
        gpu.free(from);
        gpu.free(to);
    });
}

fn got_all(gpu: &Gpu, at: u64) -> Vec<u32> {
    gpu.download(at, 42 * 64).unwrap()
}

fn got_high(all: &[u32], i: usize) -> u32 {
    all[37 * 64 + i]
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

#[test]
fn an_unsupported_instruction_is_refused_by_name() {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry k() {\n.reg .f32 %f<3>;\nsubmarine.rn.f32 %f1, %f2;\nret;\n}\n";
    assert!(gpu.load(text).is_err());
    assert!(
        gpu.load(&text.replace("submarine.rn", "add.rn.sideways").replace("%f2;", "%f2, %f2;"))
            .is_err()
    );
    assert!(gpu.load(&text.replace("submarine.rn", "add.rn").replace("%f2;", "%f2, %f2;")).is_ok());
    // A cubin: the caller falls back to PTX.
    let cubin = c"\x7FELF";
    // SAFETY: four bytes are enough to tell.
    let refused = unsafe { cudarc::driver::result::module::load_data(cubin.as_ptr().cast()) };
    assert!(refused.is_err());
}
