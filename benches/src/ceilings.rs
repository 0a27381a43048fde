//! Multiply-add peaks of the CPU: references of the CPU benchmarks, beside the read bandwidth of
//! `reads`.
//!
//! They are measured with the threads that run the workload, and between its repetitions: on a
//! shared machine they drift as the workload does.

use std::hint::black_box;
use std::time::Instant;

#[cfg(target_arch = "x86_64")]
use trail_platform::simd::{Avx2, Avx512, Avx512Bf16, Avx512Vnni, AvxVnni, Maddubs, Maddubs512};
use trail_platform::simd::{ByteDot, Bytes, PairDot, PlainDot, PlainPairs, Portable, Simd};
#[cfg(target_arch = "aarch64")]
use trail_platform::simd::{Neon, NeonDotprod, NeonI8mm, NeonMull};
use trail_runtime::cpu::{CpuForward, Isa, Pool};

/// Fused multiply-adds of each accumulator in one work item: about a millisecond.
const FMA_ROUNDS: usize = 1_000_000;
/// Work items per worker, for balance.
const PIECES: usize = 8;
/// Independent accumulators: enough to hide the latency of the FMA (4 cycles, two a cycle).
const ACCUMULATORS: usize = 12;

/// Returns the 10^9 multiplications and additions a second of all threads together, by the
/// instructions of `forward`'s products on registers alone, over about `seconds`: as long as the
/// workload, so that a burst quota favours neither.
pub fn multiply_add_gop_per_s(pool: &mut Pool, forward: &CpuForward, seconds: f64) -> f64 {
    let (kernel, terms) = match (forward.byte_products(), forward.bf16_products()) {
        (Some(name), _) => byte_kernel(name),
        (None, Some(name)) => pair_kernel(name),
        (None, None) => fma_kernel(forward.isa()),
    };
    rate(pool, kernel, terms, seconds)
}

/// Returns the GFLOP/s of all threads together in fused multiply-adds of `isa` on registers alone,
/// over about `seconds`.
pub fn fma_gflop_per_s(pool: &mut Pool, isa: Isa, seconds: f64) -> f64 {
    let (kernel, lanes) = fma_kernel(isa);
    rate(pool, kernel, lanes, seconds)
}

/// Returns the 10^9 operations a second of `kernel`, two for each of the `terms` of an instruction.
fn rate(pool: &mut Pool, kernel: fn(f32) -> f32, terms: usize, seconds: f64) -> f64 {
    let workers = pool.num_workers();
    let flops = (workers * PIECES * FMA_ROUNDS * ACCUMULATORS * terms * 2) as f64;
    let (start, mut runs) = (Instant::now(), 0.0);
    loop {
        pool.for_each(
            workers * PIECES,
            || false,
            |_, _| {
                black_box(kernel(black_box(0.999_999)));
            },
        );
        runs += 1.0;
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed >= seconds {
            return runs * flops / elapsed / 1e9;
        }
    }
}

/// Returns the loop of a [`ByteDot`] by its name, and the terms that each adds.
fn byte_kernel(name: &str) -> (fn(f32) -> f32, usize) {
    /// Compiles the loop with `$features`.
    macro_rules! kernel {
        ($V:ty, $D:ty $(, $features:literal)?) => {{
            /// # Safety
            ///
            /// The CPU must have the features.
            $(#[target_feature(enable = $features)])?
            unsafe fn dots(x: f32) -> f32 {
                // SAFETY: the caller guarantees the features.
                unsafe { byte_dots::<$V, $D>(x) }
            }
            // SAFETY: a backend with products of this name exists only where the CPU has them.
            (|x| unsafe { dots(x) }, 4 * <$V as Simd>::LANES)
        }};
    }
    match name {
        #[cfg(target_arch = "x86_64")]
        "avx512_vnni" => kernel!(Avx512, Avx512Vnni, "avx512f,avx512bw,avx512vnni"),
        #[cfg(target_arch = "x86_64")]
        "avx512bw" => kernel!(Avx512, Maddubs512, "avx512f,avx512bw"),
        #[cfg(target_arch = "x86_64")]
        "avx_vnni" => kernel!(Avx2, AvxVnni, "avx2,fma,f16c,avxvnni"),
        #[cfg(target_arch = "x86_64")]
        "avx2" => kernel!(Avx2, Maddubs, "avx2,fma,f16c"),
        #[cfg(target_arch = "aarch64")]
        "i8mm" => kernel!(Neon, NeonI8mm, "neon,i8mm"),
        #[cfg(target_arch = "aarch64")]
        "dotprod" => kernel!(Neon, NeonDotprod, "neon,dotprod"),
        #[cfg(target_arch = "aarch64")]
        "neon" => kernel!(Neon, NeonMull, "neon"),
        _ => kernel!(Portable, PlainDot),
    }
}

/// # Safety
///
/// The CPU must have the instructions of `V` and `D`.
#[inline(always)]
unsafe fn byte_dots<V: Bytes, D: ByteDot<V>>(x: f32) -> f32 {
    let bytes = x.to_bits().to_ne_bytes();
    let mut out = 0.0;
    // SAFETY: the caller guarantees the instructions; `bytes` has four bytes.
    unsafe {
        let x = V::splat_word(bytes.as_ptr());
        let q = V::xor(x, 0x0101_0101);
        let mut sums = [x; ACCUMULATORS];
        for _ in 0..FMA_ROUNDS {
            for sum in &mut sums {
                *sum = D::dot(*sum, q, x, false);
            }
        }
        for sum in sums {
            out += V::to_f32(sum).max_lane();
        }
    }
    out
}

/// Returns the loop of a [`PairDot`] by its name, and the terms that each adds.
fn pair_kernel(name: &str) -> (fn(f32) -> f32, usize) {
    match name {
        #[cfg(target_arch = "x86_64")]
        "avx512_bf16" => {
            /// # Safety
            ///
            /// The CPU must have the features.
            #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
            unsafe fn dots(x: f32) -> f32 {
                // SAFETY: the caller guarantees the features.
                unsafe { pair_dots::<Avx512, Avx512Bf16>(x) }
            }
            // SAFETY: a backend with products of this name exists only where the CPU has them.
            (|x| unsafe { dots(x) }, 2 * Avx512::LANES)
        }
        // SAFETY: plain Rust runs on any CPU.
        _ => (|x| unsafe { pair_dots::<Portable, PlainPairs>(x) }, 2 * Portable::LANES),
    }
}

/// # Safety
///
/// The CPU must have the instructions of `V` and `D`.
#[inline(always)]
unsafe fn pair_dots<V: Simd, D: PairDot<V>>(x: f32) -> f32 {
    let mut out = 0.0;
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let x = V::splat(x);
        let mut sums = [V::splat(0.0); ACCUMULATORS];
        for _ in 0..FMA_ROUNDS {
            for sum in &mut sums {
                *sum = D::dot(*sum, x, x);
            }
        }
        for sum in sums {
            out += sum.max_lane();
        }
    }
    out
}

/// Returns the multiply-add loop of `isa` and its number of lanes.
fn fma_kernel(isa: Isa) -> (fn(f32) -> f32, usize) {
    /// Compiles the loop with `$features`.
    macro_rules! kernel {
        ($V:ty, $features:literal) => {{
            /// # Safety
            ///
            /// The CPU must have the features.
            #[target_feature(enable = $features)]
            unsafe fn chains(x: f32) -> f32 {
                // SAFETY: the caller guarantees the features.
                unsafe { multiply_adds::<$V>(x) }
            }
            // SAFETY: a backend that runs `isa` exists only where the CPU has it.
            (|x| unsafe { chains(x) }, <$V as Simd>::LANES)
        }};
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => kernel!(Avx2, "avx2,fma"),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel!(Avx512, "avx512f"),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => kernel!(Neon, "neon"),
        _ => (multiply_add_portable, 4),
    }
}

/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
unsafe fn multiply_adds<V: Simd>(x: f32) -> f32 {
    // SAFETY: the caller guarantees the instructions.
    let x = unsafe { V::splat(x) };
    let mut sums = [x; ACCUMULATORS];
    for _ in 0..FMA_ROUNDS {
        for sum in &mut sums {
            *sum = sum.mul_add(x, x);
        }
    }
    let mut out = 0.0;
    for sum in sums {
        out += sum.max_lane();
    }
    out
}

/// Multiply, then add, as the portable kernels do on targets without a fused instruction. Written
/// with SSE intrinsics, since the compiler does not vectorize a loop over arrays.
#[cfg(target_arch = "x86_64")]
fn multiply_add_portable(x: f32) -> f32 {
    use std::arch::x86_64::*;
    // SAFETY: SSE is part of x86-64.
    unsafe {
        let x = _mm_set1_ps(x);
        let mut sums = [x; ACCUMULATORS];
        for _ in 0..FMA_ROUNDS {
            for sum in &mut sums {
                *sum = _mm_add_ps(_mm_mul_ps(*sum, x), x);
            }
        }
        _mm_cvtss_f32(sums.into_iter().reduce(|a, b| _mm_add_ps(a, b)).unwrap_or(x))
    }
}

/// Multiply, then add, as compiled for the target.
#[cfg(not(target_arch = "x86_64"))]
fn multiply_add_portable(x: f32) -> f32 {
    let mut sums = [[x; 4]; ACCUMULATORS];
    for _ in 0..FMA_ROUNDS {
        sums = sums.map(|sum| sum.map(|lane| lane * x + x));
    }
    sums.into_iter().flatten().sum()
}
