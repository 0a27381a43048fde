//! `atom` and `red`: one lane after another, lowest first; on global memory atomically among blocks
//! on other host threads.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use half::{bf16, f16};

use super::Cx;
use super::global::Intent;
use super::lanes::{LANES, Lane, lanes};
use super::memory::{addresses, in_space};
use super::order::Strong;
use super::shared::Manner;
use crate::ptx::program::{Handler, Inst, Scalar, Space};
use crate::ptx::types::Ty;
use crate::report::Kind;

/// A word that memory can update in one piece.
trait Word: Lane + Into<u64> {
    const BYTES: u64;
    /// Replaces the word at `at` by `f` of it; gives the old one.
    ///
    /// # Safety
    /// `at` is aligned and points to live memory.
    unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self;
    fn from_bytes(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
    fn cut(bits: u64) -> Self;
}

macro_rules! word {
    ($ty:ty, $atomic:ty) => {
        impl Word for $ty {
            const BYTES: u64 = size_of::<$ty>() as u64;

            unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: the caller's promise; every access of several blocks to this word at once
                // goes through here or is the kernel's race.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                let update =
                    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old)));
                update.unwrap_or_default()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                bytes.try_into().map(<$ty>::from_le_bytes).unwrap_or_default()
            }

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn cut(bits: u64) -> Self {
                bits as $ty
            }
        }
    };
}

word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// The handler of an operation; `None` when the pair does not exist.
pub(crate) fn select(operation: &str, ty: Ty) -> Option<(Handler, Scalar)> {
    /// The function as an instruction keeps it: of the old word and two operands, all as 64 bits.
    macro_rules! on {
        ($word:ty, $f:expr) => {{
            let f: fn(u64, u64, u64) -> u64 = |old, b, c| {
                let f: fn($word, $word, $word) -> $word = $f;
                u64::from(f(old as $word, b as $word, c as $word))
            };
            (atomic::<$word> as Handler, Scalar::Three(f))
        }};
    }
    Some(match (operation, ty) {
        ("add", Ty::U32 | Ty::S32) => on!(u32, |old, b, _| old.wrapping_add(b)),
        ("add", Ty::U64 | Ty::S64) => on!(u64, |old, b, _| old.wrapping_add(b)),
        ("add", Ty::F32) => {
            on!(u32, |old, b, _| (f32::from_bits(old) + f32::from_bits(b)).to_bits())
        }
        ("add", Ty::F64) => {
            on!(u64, |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits())
        }
        ("add", Ty::F16) => {
            on!(u16, |old, b, _| (f16::from_bits(old) + f16::from_bits(b)).to_bits())
        }
        ("add", Ty::BF16) => {
            on!(u16, |old, b, _| (bf16::from_bits(old) + bf16::from_bits(b)).to_bits())
        }
        ("add", Ty::F16x2) => on!(u32, |old, b, _| halves(old, b, |x, y| (f16::from_bits(x)
            + f16::from_bits(y))
        .to_bits())),
        ("add", Ty::BF16x2) => on!(u32, |old, b, _| halves(old, b, |x, y| (bf16::from_bits(x)
            + bf16::from_bits(y))
        .to_bits())),
        ("min", Ty::U32) => on!(u32, |old, b, _| old.min(b)),
        ("max", Ty::U32) => on!(u32, |old, b, _| old.max(b)),
        ("min", Ty::S32) => on!(u32, |old, b, _| (old as i32).min(b as i32) as u32),
        ("max", Ty::S32) => on!(u32, |old, b, _| (old as i32).max(b as i32) as u32),
        ("min", Ty::U64) => on!(u64, |old, b, _| old.min(b)),
        ("max", Ty::U64) => on!(u64, |old, b, _| old.max(b)),
        ("min", Ty::S64) => on!(u64, |old, b, _| (old as i64).min(b as i64) as u64),
        ("max", Ty::S64) => on!(u64, |old, b, _| (old as i64).max(b as i64) as u64),
        ("and", Ty::B32) => on!(u32, |old, b, _| old & b),
        ("or", Ty::B32) => on!(u32, |old, b, _| old | b),
        ("xor", Ty::B32) => on!(u32, |old, b, _| old ^ b),
        ("and", Ty::B64) => on!(u64, |old, b, _| old & b),
        ("or", Ty::B64) => on!(u64, |old, b, _| old | b),
        ("xor", Ty::B64) => on!(u64, |old, b, _| old ^ b),
        ("exch", Ty::B32) => on!(u32, |_, b, _| b),
        ("exch", Ty::B64) => on!(u64, |_, b, _| b),
        ("cas", Ty::B16) => on!(u16, |old, b, c| if old == b { c } else { old }),
        ("cas", Ty::B32) => on!(u32, |old, b, c| if old == b { c } else { old }),
        ("cas", Ty::B64) => on!(u64, |old, b, c| if old == b { c } else { old }),
        ("inc", Ty::U32) => on!(u32, |old, b, _| if old >= b { 0 } else { old + 1 }),
        ("dec", Ty::U32) => on!(u32, |old, b, _| if old == 0 || old > b { b } else { old - 1 }),
        _ => return None,
    })
}

/// Applies `f` to both halves of two words.
#[inline(always)]
pub(crate) fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

fn atomic<W: Word>(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let Scalar::Three(f) = i.scalar else { return };
    let addresses = addresses(cx, i.s[0], i.imm);
    let b = W::read(&cx.warp.registers, i.s[1]);
    let c = if i.sources > 2 { W::read(&cx.warp.registers, i.s[2]) } else { b };
    let mut old = [W::default(); LANES];
    in_space(cx, i.access.space, mask, &addresses, |cx, space, mask, addresses| {
        for lane in lanes(mask) {
            let update = |word: W| W::cut(f(word.into(), b[lane].into(), c[lane].into()));
            match one(cx, i, space, lane, addresses[lane], update) {
                Ok(word) => old[lane] = word,
                Err((kind, detail)) => return cx.fault(kind, lane, detail),
            }
        }
    });
    if i.targets > 0 {
        W::write(&mut cx.warp.registers, i.d[0], &old, mask);
    }
}

fn one<W: Word>(
    cx: &mut Cx<'_>,
    i: &Inst,
    space: Space,
    lane: usize,
    address: u64,
    f: impl Fn(W) -> W,
) -> Result<W, (Kind, String)> {
    match space {
        Space::Shared => {
            cx.shared.check(cx.warp.number, lane, address, W::BYTES, Manner::Atomic)?;
            let bytes = &mut cx.shared.bytes()[address as usize..(address + W::BYTES) as usize];
            let old = W::from_bytes(bytes);
            f(old).put(bytes);
            Ok(old)
        }
        Space::Local => {
            let bytes = cx.warp.local.access(lane, address, W::BYTES, false)?;
            let old = W::from_bytes(bytes);
            f(old).put(bytes);
            Ok(old)
        }
        Space::Global => {
            let at = cx.global(i.line, address, W::BYTES, W::BYTES, Intent::Update)?;
            let access = (Strong::Update, i.access.strength);
            // SAFETY: `global` found the word, live and aligned: allocations are aligned to 256
            // bytes on both sides.
            let update = || unsafe { W::update(at, f) };
            Ok(cx.grid.words.access(cx.order, (address, W::BYTES), access, update))
        }
        _ => Err((Kind::OutOfBounds, format!("an atomic in {space} memory"))),
    }
}
