//! Read bandwidth of the CPU: the best of several loops, measured with the threads that run the
//! workload.
//!
//! Which loop reads fastest depends on the CPU and on how busy its memory is: hardware prefetchers
//! follow some streams and lose others. A workload cannot read faster than all loops, so that its
//! share of the best is at most 1 but for what drifts between the two.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use trail_platform::simd::{Portable, Simd};
use trail_platform::stats::median;
use trail_runtime::cpu::{Isa, Pool};

/// Bytes of one work item: small enough for balance, long enough for the prefetchers.
const PIECE: usize = 1 << 18;
/// Bytes that a stream advances by: two cache lines, which prefetchers fetch in pairs.
const ADVANCE: usize = 128;

/// A loop that reads memory.
#[derive(Clone, Copy)]
pub struct ReadKernel {
    /// Register width, streams of a thread, and prefetch distance in KiB.
    pub name: &'static str,
    /// Returns the wrapping sum of the 64-bit words, the last one padded with zeros.
    sum: fn(&[u8]) -> u64,
}

impl ReadKernel {
    /// The kernels of `isa`; those of wide registers, and with narrower ones the plain loop.
    pub fn all(isa: Isa) -> Vec<ReadKernel> {
        assert!(isa.is_available(), "this CPU has no {isa}");
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if Isa::Avx2.is_available() => [&AVX2[..1], &AVX512].concat(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => AVX512.to_vec(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => AVX2.to_vec(),
            _ => PLAIN.to_vec(),
        }
    }

    /// Returns the GB/s at which all threads of `pool` together read `slices` once.
    pub fn gb_per_s(&self, pool: &mut Pool, slices: &[&[u8]]) -> f64 {
        let pieces: Vec<&[u8]> = slices.iter().flat_map(|slice| slice.chunks(PIECE)).collect();
        let total = AtomicU64::new(0);
        let start = Instant::now();
        pool.for_each(
            pieces.len(),
            || false,
            |_, item| {
                total.fetch_add((self.sum)(pieces[item]), Ordering::Relaxed);
            },
        );
        let seconds = start.elapsed().as_secs_f64();
        black_box(total);
        slices.iter().map(|slice| slice.len()).sum::<usize>() as f64 / seconds / 1e9
    }
}

/// Rates of all kernels over a run.
pub struct ReadCeiling {
    kernels: Vec<ReadKernel>,
    /// GB/s `[kernels][measurements]`.
    rates: Vec<Vec<f64>>,
}

impl ReadCeiling {
    /// No measurements so far, of the kernels of `isa`.
    pub fn new(isa: Isa) -> ReadCeiling {
        let kernels = ReadKernel::all(isa);
        ReadCeiling { rates: vec![Vec::new(); kernels.len()], kernels }
    }

    /// Reads `slices` with each kernel; returns the best rate, GB/s.
    pub fn measure(&mut self, pool: &mut Pool, slices: &[&[u8]]) -> f64 {
        let mut best: f64 = 0.0;
        for (kernel, rates) in self.kernels.iter().zip(&mut self.rates) {
            let rate = kernel.gb_per_s(pool, slices);
            rates.push(rate);
            best = best.max(rate);
        }
        best
    }

    /// Names and median rates, best first.
    pub fn ranked(&self) -> Vec<(&'static str, f64)> {
        let rates = self.rates.iter().map(|rates| median(rates));
        let mut ranked: Vec<_> = self.kernels.iter().map(|kernel| kernel.name).zip(rates).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked
    }
}

/// Cache level that a kernel prefetches into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    /// L2, as the products of the forward pass do.
    Far,
    /// Non-temporal: into L1 past the other levels, where the CPU has the hint.
    NonTemporal,
}

impl Hint {
    #[inline(always)]
    fn prefetch(self, line: *const u8) {
        #[cfg(target_arch = "x86_64")]
        if self == Hint::NonTemporal {
            // SAFETY: prefetching never faults, and SSE is part of x86-64.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
                return _mm_prefetch::<_MM_HINT_NTA>(line.cast());
            }
        }
        Portable::prefetch_far(line);
    }
}

/// A register of 64-bit words.
trait Words: Copy {
    const BYTES: usize;

    fn zero() -> Self;

    /// Adds the words at `p`.
    ///
    /// # Safety
    ///
    /// `Self::BYTES` must be readable, and the CPU must have the instructions.
    unsafe fn add(self, p: *const u8) -> Self;

    /// Sum of the words.
    fn total(self) -> u64;
}

impl Words for [u64; 4] {
    const BYTES: usize = 32;

    #[inline(always)]
    fn zero() -> Self {
        [0; 4]
    }

    #[inline(always)]
    unsafe fn add(self, p: *const u8) -> Self {
        // SAFETY: the caller guarantees four words.
        let words: [u64; 4] = unsafe { p.cast::<[u64; 4]>().read_unaligned() };
        std::array::from_fn(|i| self[i].wrapping_add(words[i]))
    }

    #[inline(always)]
    fn total(self) -> u64 {
        self.into_iter().fold(0, u64::wrapping_add)
    }
}

/// [`Words`] of an x86 register.
#[cfg(target_arch = "x86_64")]
macro_rules! words {
    ($V:ident, $load:ident, $add:ident) => {
        impl Words for std::arch::x86_64::$V {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            fn zero() -> Self {
                // SAFETY: zero is a value of every register.
                unsafe { std::mem::zeroed() }
            }

            #[inline(always)]
            unsafe fn add(self, p: *const u8) -> Self {
                use std::arch::x86_64::{$add, $load};
                // SAFETY: the caller guarantees the bytes and the instructions.
                unsafe { $add(self, $load(p.cast())) }
            }

            #[inline(always)]
            fn total(self) -> u64 {
                // SAFETY: a register is as long as its words, all of whose values are valid.
                let words: [u64; size_of::<Self>() / 8] = unsafe { std::mem::transmute(self) };
                words.into_iter().fold(0, u64::wrapping_add)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
words!(__m256i, _mm256_loadu_si256, _mm256_add_epi64);
#[cfg(target_arch = "x86_64")]
words!(__m512i, _mm512_loadu_si512, _mm512_add_epi64);

/// Sums the words of `bytes` in `STREAMS` streams side by side, each prefetched `AHEAD` bytes
/// before it is read (0: not at all).
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
unsafe fn sum<V: Words, const STREAMS: usize, const AHEAD: usize>(bytes: &[u8], hint: Hint) -> u64 {
    let length = bytes.len() / STREAMS / ADVANCE * ADVANCE;
    let (streams, rest) = bytes.split_at(STREAMS * length);
    let mut sums = [[V::zero(); 4]; STREAMS];
    for at in (0..length).step_by(ADVANCE) {
        for (stream, sums) in sums.iter_mut().enumerate() {
            let p = streams.as_ptr().wrapping_add(stream * length + at);
            if AHEAD > 0 {
                (0..ADVANCE)
                    .step_by(64)
                    .for_each(|line| hint.prefetch(p.wrapping_add(AHEAD + line)));
            }
            for (i, sum) in sums.iter_mut().take(ADVANCE / V::BYTES).enumerate() {
                // SAFETY: the registers lie within the stream; the caller guarantees the rest.
                *sum = unsafe { sum.add(p.wrapping_add(i * V::BYTES)) };
            }
        }
    }
    let sums = sums.into_iter().flatten().map(V::total);
    sums.chain([plain_sum(rest)]).fold(0, u64::wrapping_add)
}

/// The sum word by word.
fn plain_sum(bytes: &[u8]) -> u64 {
    let mut total = 0_u64;
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        total = total.wrapping_add(u64::from_le_bytes(padded));
    }
    total
}

/// Table of the kernels with registers `$V`, compiled with `$features`.
macro_rules! kernels {
    ($table:ident, $prefix:literal, $V:ty $(, $features:literal)?) => {
        const $table: [ReadKernel; 7] = {
            /// # Safety
            ///
            /// The CPU must have the features.
            $(#[target_feature(enable = $features)])?
            unsafe fn read<const STREAMS: usize, const AHEAD: usize, const TEMPORAL: bool>(
                bytes: &[u8],
            ) -> u64 {
                let hint = if TEMPORAL { Hint::Far } else { Hint::NonTemporal };
                // SAFETY: the caller guarantees the features.
                unsafe { sum::<$V, STREAMS, AHEAD>(bytes, hint) }
            }
            macro_rules! kernel {
                ($name:literal, $streams:literal, $ahead:literal, $temporal:literal) => {
                    ReadKernel {
                        name: concat!($prefix, $name),
                        // SAFETY: `ReadKernel::all` lists a table only where the CPU has its
                        // features.
                        sum: |bytes| unsafe { read::<$streams, $ahead, $temporal>(bytes) },
                    }
                };
            }
            [
                kernel!("", 1, 0, true),
                kernel!(", 1 KiB ahead", 1, 1024, true),
                kernel!(", 4 KiB ahead", 1, 4096, true),
                kernel!(", 8 KiB ahead", 1, 8192, true),
                kernel!(", 2 KiB ahead by nta", 1, 2048, false),
                kernel!(", 2 streams, 2 KiB ahead", 2, 2048, true),
                kernel!(", 4 streams, 1 KiB ahead", 4, 1024, true),
            ]
        };
    };
}
kernels!(PLAIN, "plain", [u64; 4]);
#[cfg(target_arch = "x86_64")]
kernels!(AVX2, "256 bits", std::arch::x86_64::__m256i, "avx2");
#[cfg(target_arch = "x86_64")]
kernels!(AVX512, "512 bits", std::arch::x86_64::__m512i, "avx512f");

#[cfg(test)]
mod tests {
    use trail_platform::Rng;

    use super::*;

    #[test]
    fn every_kernel_reads_every_byte() {
        let mut rng = Rng::new(1);
        let bytes: Vec<u8> = (0..3 * PIECE).map(|_| rng.next_u64() as u8).collect();
        for isa in Isa::available() {
            for kernel in ReadKernel::all(isa) {
                for len in [0, 1, 7, 127, 128, 129, 511, 512, 4099, PIECE, 2 * PIECE + 13] {
                    let bytes = &bytes[5..][..len];
                    assert_eq!((kernel.sum)(bytes), plain_sum(bytes), "{} of {len}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn kernels_are_ranked_by_their_median() {
        let mut ceiling = ReadCeiling::new(Isa::Portable);
        assert!(ceiling.measure(&mut Pool::new(1).unwrap(), &[&[1; 4096]]) > 0.0);
        for (index, rates) in ceiling.rates.iter_mut().enumerate() {
            *rates = vec![index as f64, index as f64, 100.0];
        }
        let ranked = ceiling.ranked();
        assert_eq!(ranked[0], (PLAIN[6].name, 6.0));
        assert_eq!(ranked[6], (PLAIN[0].name, 0.0));
    }
}
