//! Products with accumulators of f16, two in a register: against plain loops in f32, rounded once.
//! Every sum is exact in f32, and some need the rounding.

use crate::common::Gpu;
use half::f16;

/// Words of each thread: a fragment of A (4), of B (2, or none) and of C (2).
const MMA: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry product(.param .u64 to, .param .u64 from) {
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 32;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd4];
    ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd4+16];
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16
        {%r10, %r11}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%r8, %r9};
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd5, %rd1, %rd3;
    st.global.v2.u32 [%rd5], {%r10, %r11};
    ret;
}";

/// The same of a warpgroup, with B behind the threads' words: 8 rows of 32 bytes, swizzled.
const WGMMA: &str = r"
.version 8.0
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 to, .param .u64 from) {
    .reg .pred %p<2>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<10>;
    .shared .align 1024 .b8 rows[256];
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 32;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd4];
    ld.global.v2.u32 {%r8, %r9}, [%rd4+24];
    mov.u32 %r12, rows;
    setp.gt.u32 %p1, %r1, 15;
    @%p1 bra stored;
    mul.wide.u32 %rd5, %r1, 16;
    add.s64 %rd6, %rd2, %rd5;
    ld.global.v4.u32 {%r13, %r14, %r15, %r16}, [%rd6+4096];
    shl.b32 %r17, %r1, 4;
    add.u32 %r18, %r12, %r17;
    st.shared.v4.u32 [%r18], {%r13, %r14, %r15, %r16};
    fence.proxy.async.shared::cta;
stored:
    bar.sync 0;
    shr.u32 %r19, %r12, 4;
    cvt.u64.u32 %rd7, %r19;
    or.b64 %rd8, %rd7, 0xC000001000010000;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16
        {%r8, %r9}, {%r2, %r3, %r4, %r5}, %rd8, 1, 1, 1, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd9, %rd1, %rd3;
    st.global.v2.u32 [%rd9], {%r8, %r9};
    ret;
}";

const K: usize = 16;
const N: usize = 8;

fn pack(low: f32, high: f32) -> u32 {
    let [low, high] = [low, high].map(|value| u32::from(f16::from_f32(value).to_bits()));
    low | high << 16
}

/// Small integers, so that products are exact; C is where f16 has steps of 2.
fn a(row: usize, k: usize) -> f32 {
    ((row * 7 + k * 3) % 9) as f32 - 4.0
}
fn b(k: usize, n: usize) -> f32 {
    ((k * 5 + n * 11) % 7) as f32 - 3.0
}
fn c(row: usize, n: usize) -> f32 {
    if (row + n).is_multiple_of(3) { 2048.0 + 2.0 * row as f32 } else { row as f32 - n as f32 }
}

/// Runs `text` with a warp for each 16 of `rows` rows.
fn check(gpu: &Gpu, text: &str, rows: usize, is_warpgroup: bool) {
    let threads = rows * 2;
    let mut words = vec![0u32; threads * 8];
    for (thread, words) in words.chunks_exact_mut(8).enumerate() {
        let (lane, first) = (thread % 32, thread / 32 * 16);
        let (row, two) = (first + lane / 4, lane % 4 * 2);
        for (r, word) in words[..4].iter_mut().enumerate() {
            let (row, k) = (row + r % 2 * 8, two + r / 2 * 8);
            *word = pack(a(row, k), a(row, k + 1));
        }
        for r in 0..2 {
            let (k, n) = (two + r * 8, lane / 4);
            words[4 + r] = pack(b(k, n), b(k + 1, n));
            words[6 + r] = pack(c(row + r * 8, two), c(row + r * 8, two + 1));
        }
    }
    if is_warpgroup {
        // The swizzle of 32 bytes: the chunk's bit by the row's third.
        for (n, chunk) in (0..N).flat_map(|n| [(n, 0), (n, 1)]) {
            let chunk = chunk ^ (n / 4);
            words.extend((0..4).map(|w| {
                let k = chunk * 8 + w * 2;
                pack(b(k, n), b(k + 1, n))
            }));
        }
    }
    let module = gpu.load(text).unwrap();
    let (from, to) = (gpu.upload(&words), gpu.upload(&vec![0u32; threads * 2]));
    module.launch("product", 1, threads as u32, 0, vec![to.into(), from.into()]).unwrap();
    let got: Vec<u32> = gpu.download(to, threads * 2).unwrap();
    let mut rounded = 0;
    for (at, &word) in got.iter().enumerate() {
        let (thread, r) = (at / 2, at % 2);
        let (lane, first) = (thread % 32, thread / 32 * 16);
        let (row, two) = (first + lane / 4 + r * 8, lane % 4 * 2);
        let exact = |n: usize| c(row, n) + (0..K).map(|k| a(row, k) * b(k, n)).sum::<f32>();
        assert_eq!(word, pack(exact(two), exact(two + 1)), "row {row}, columns {two} and next");
        rounded += u32::from(f16::from_f32(exact(two)).to_f32() != exact(two));
    }
    assert!(rounded > 0, "no sum needs the rounding");
    [from, to].into_iter().for_each(|at| gpu.free(at));
}

#[test]
fn mma_with_half_accumulators_is_its_definition() {
    let _session = trail_cuda_emulator::session();
    check(&Gpu::new(), MMA, 16, false);
}

#[test]
fn wgmma_with_half_accumulators_is_its_definition() {
    let session = trail_cuda_emulator::session();
    session.emulator().iter().for_each(|emulator| emulator.hopper());
    check(&Gpu::new(), WGMMA, 64, true);
}
