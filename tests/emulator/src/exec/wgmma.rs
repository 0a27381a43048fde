//! `wgmma`: products of a warpgroup, D[64, N] += A[64, K] * B[K, N], A from registers or shared
//! memory, B from shared memory, transposed or not. Each warp computes the 16 rows that its
//! registers hold. They run asynchronously: shared memory is read when the product is issued or
//! when it is waited for, by seed, and the accumulators hold NaN until then. Sums are as in
//! [`super::mma`].

mod rows;

use rows::Rows;

use super::Cx;
use super::lanes::LANES;
use super::matrix::whole;
use super::mma::{Brain, Element, Half, pack_half, unpack_half};
use super::numerics;
use super::shared::{Trouble, WARPS};
use crate::ptx::program::{Handler, Inst, Slot};
use crate::ptx::types::{Class, Ty};
use crate::report::Kind;

/// Rows of a warp.
const M: usize = 16;
/// Depth of a product of 16-bit elements.
pub(crate) const K: usize = 16;

/// Products of a warp that were not waited for.
#[derive(Default)]
pub(crate) struct Products {
    /// In order of issue.
    pending: Vec<Product>,
    /// Of pending products; `None`: a free place.
    sums: Vec<Option<Sums>>,
    /// Groups committed.
    committed: u32,
    /// A fence came after the last group.
    is_fenced: bool,
}

/// Accumulators of pending products.
struct Sums {
    slots: Box<[Slot]>,
    /// Two accumulators of f16 share a register.
    is_half: bool,
    /// `[M, N]`
    values: Vec<f32>,
}

struct Product {
    group: u32,
    /// Which accumulators.
    sums: usize,
    a: Left,
    b: Rows,
    /// The rows of B are those of the matrix, and not its columns.
    is_transposed: bool,
    columns: usize,
    is_added: bool,
    unpack: Unpack,
    is_done: bool,
    /// Clocks that the warp knew at the issue: the operands hold no later write until the end.
    known: [u32; WARPS],
}

/// The first operand.
enum Left {
    /// Four registers, and what they held at the issue.
    Registers([Slot; 4], Box<[[u32; LANES]; 4]>),
    Shared(Rows),
}

type Unpack = fn(&[u32; LANES], &mut [f32; 64]);

impl Products {
    pub(crate) fn clear(&mut self) {
        *self = Products::default();
    }
}

/// The handler for elements of `ty` and accumulators of `sums`, if any, and the number of
/// accumulators in a register.
pub(crate) fn select(ty: Ty, sums: Ty) -> Option<(Handler, usize)> {
    Some(match (ty, sums) {
        (Ty::BF16, Ty::F32) => (|cx, i, mask| issue(cx, i, mask, Brain::unpack, false), 1),
        (Ty::F16, Ty::F32) => (|cx, i, mask| issue(cx, i, mask, Half::unpack, false), 1),
        (Ty::F16, Ty::F16) => (|cx, i, mask| issue(cx, i, mask, Half::unpack, true), 2),
        _ => return None,
    })
}

/// `wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16 d, a, b, p, ...`: `accumulators` are d, the
/// sources are a (four registers or a descriptor), b and p; `imm` is 1 if b is transposed.
fn issue(cx: &mut Cx<'_>, i: &Inst, mask: u32, unpack: Unpack, is_half: bool) {
    if !whole(cx, mask) {
        return;
    }
    if !cx.warp.wgmma.is_fenced {
        let detail = "no wgmma.fence since the group before it".to_owned();
        return cx.fault(Kind::WgmmaOrder, 0, detail);
    }
    if let Err((kind, detail)) = start(cx, i, unpack, is_half) {
        cx.fault(kind, 0, detail);
    }
}

fn start(cx: &mut Cx<'_>, i: &Inst, unpack: Unpack, is_half: bool) -> Result<(), Trouble> {
    let [.., b, added] = i.sources() else { return Ok(()) };
    let wide = |slot: &Slot| cx.warp.registers.wide[slot.index()][0];
    let b = Rows::decode(wide(b))?;
    let is_added = cx.warp.registers.pred(*added) & 1 == 1;
    let a = match i.s[0].class() {
        Class::Wide => {
            let mut rows = Rows::decode(wide(&i.s[0]))?;
            // Each warp of the warpgroup has 16 of the 64 rows.
            rows.start += (cx.warp.number as u64 % 4) * 2 * rows.stride;
            Left::Shared(rows)
        }
        _ => {
            let slots = [0, 1, 2, 3].map(|at| i.s[at]);
            Left::Registers(slots, Box::new(slots.map(|slot| narrow(cx, slot))))
        }
    };
    let columns = i.accumulators.len() * if is_half { 4 } else { 2 };
    let sums = take_sums(cx, &i.accumulators, is_half);
    let group = cx.warp.wgmma.committed;
    let known = cx.shared.clocks(cx.warp.number);
    let (is_transposed, is_done) = (i.imm == 1, false);
    let mut product =
        Product { group, sums, a, b, is_transposed, columns, is_added, unpack, is_done, known };
    if !cx.grid.late_copies {
        run(cx, &mut product)?;
    }
    cx.warp.wgmma.pending.push(product);
    Ok(())
}

/// The lanes' values of a register.
fn narrow(cx: &Cx<'_>, slot: Slot) -> [u32; LANES] {
    cx.warp.registers.narrow[slot.index()]
}

/// Place of the accumulators in `slots`: their values leave the registers until they are waited
/// for.
fn take_sums(cx: &mut Cx<'_>, slots: &[Slot], is_half: bool) -> usize {
    let is_of = |sums: &Option<Sums>| sums.as_ref().is_some_and(|sums| *sums.slots == *slots);
    if let Some(known) = cx.warp.wgmma.sums.iter().position(is_of) {
        return known;
    }
    let columns = slots.len() * if is_half { 4 } else { 2 };
    let mut values = vec![0.0; M * columns];
    for (at, slot) in slots.iter().enumerate() {
        let register = &mut cx.warp.registers.narrow[slot.index()];
        for (lane, word) in register.iter_mut().enumerate() {
            if is_half {
                let first = place(2 * at, lane, columns);
                values[first..first + 2].copy_from_slice(&unpack_half(*word));
                *word = pack_half(f32::NAN, f32::NAN);
            } else {
                values[place(at, lane, columns)] = f32::from_bits(*word);
                *word = f32::NAN.to_bits();
            }
        }
    }
    let sums = &mut cx.warp.wgmma.sums;
    let free = sums.iter().position(Option::is_none).unwrap_or_else(|| {
        sums.push(None);
        sums.len() - 1
    });
    sums[free] = Some(Sums { slots: slots.into(), is_half, values });
    free
}

/// Index in `[M, columns]` of `lane`'s accumulator `at`.
fn place(at: usize, lane: usize, columns: usize) -> usize {
    let row = lane / 4 + at % 4 / 2 * 8;
    row * columns + at / 4 * 8 + lane % 4 * 2 + at % 2
}

/// Reads the operands and adds the product to its accumulators.
fn run(cx: &mut Cx<'_>, product: &mut Product) -> Result<(), Trouble> {
    let Product { b, columns, unpack, .. } = *product;
    let mut values = [0.0; 64];
    let mut a = [[0.0; K]; M];
    for at in 0..4 {
        let (first, half) = (at % 2 * 8, at / 2);
        let words = match &product.a {
            Left::Registers(_, registers) => registers[at],
            Left::Shared(rows) => rows.fragment(cx, first, half)?,
        };
        unpack(&words, &mut values);
        for (row, values) in a[first..first + 8].iter_mut().zip(values.as_chunks::<8>().0) {
            row[half * 8..half * 8 + 8].copy_from_slice(values);
        }
    }
    // All columns of one k side by side.
    let mut right = vec![0.0; K * columns];
    for (column, half) in (0..columns).step_by(8).flat_map(|column| [(column, 0), (column, 1)]) {
        let words = match product.is_transposed {
            true => b.fragment(cx, half * 8, column / 8)?,
            false => b.fragment(cx, column, half)?,
        };
        unpack(&words, &mut values);
        for (at, &value) in values.iter().enumerate() {
            let (row, element) = (at / 8, at % 8);
            let (k, n) = if product.is_transposed { (row, element) } else { (element, row) };
            right[(half * 8 + k) * columns + column + n] = value;
        }
    }
    if let Some(Sums { values, is_half, .. }) = &mut cx.warp.wgmma.sums[product.sums] {
        if !product.is_added {
            values.fill(0.0);
        }
        add_products(&a, &right, values);
        if *is_half {
            values.iter_mut().for_each(|value| *value = unpack_half(pack_half(*value, 0.0))[0]);
        }
    }
    product.is_done = true;
    Ok(())
}

/// The sums of devices, or the fastest form that this host can run.
fn add_products(a: &[[f32; K]; M], b: &[f32], sums: &mut [f32]) {
    if numerics::is_device() {
        return add_products_as_devices(a, b, sums);
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there.
        return unsafe { add_products_avx2(a, b, sums) };
    }
    add_products_plain(a, b, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_products_avx2(a: &[[f32; K]; M], b: &[f32], sums: &mut [f32]) {
    add_products_plain(a, b, sums);
}

/// Adds a step of all `K` products at a time.
fn add_products_as_devices(a: &[[f32; K]; M], b: &[f32], sums: &mut [f32]) {
    const N: usize = numerics::COLUMNS;
    let columns = sums.len() / M;
    for first in (0..columns).step_by(N) {
        let step: [[f32; N]; K] =
            std::array::from_fn(|k| std::array::from_fn(|n| b[k * columns + first + n]));
        for (a, sums) in a.iter().zip(sums.chunks_exact_mut(columns)) {
            let sums = sums[first..].first_chunk_mut::<N>().expect("columns in eights");
            numerics::add_step::<K>(a, &step, sums);
        }
    }
}

#[inline(always)]
fn add_products_plain(a: &[[f32; K]; M], b: &[f32], sums: &mut [f32]) {
    let columns = sums.len() / M;
    for (a, sums) in a.iter().zip(sums.chunks_exact_mut(columns)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(columns)) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
}

/// `wgmma.fence.sync.aligned`
pub(crate) fn fence(cx: &mut Cx<'_>, _: &Inst, mask: u32) {
    if whole(cx, mask) {
        cx.warp.wgmma.is_fenced = true;
    }
}

/// `wgmma.commit_group.sync.aligned`
pub(crate) fn commit(cx: &mut Cx<'_>, _: &Inst, mask: u32) {
    if whole(cx, mask) {
        cx.warp.wgmma.committed += 1;
        cx.warp.wgmma.is_fenced = false;
    }
}

/// `wgmma.wait_group.sync.aligned imm`
pub(crate) fn wait(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if !whole(cx, mask) {
        return;
    }
    let due = i64::from(cx.warp.wgmma.committed) - i.imm;
    let (ended, pending) = std::mem::take(&mut cx.warp.wgmma.pending)
        .into_iter()
        .partition(|product: &Product| i64::from(product.group) < due);
    cx.warp.wgmma.pending = pending;
    if let Err((kind, detail)) = end(cx, ended) {
        return cx.fault(kind, 0, detail);
    }
    give_sums(cx);
}

/// Finds products that the lanes of `mask` leave behind.
pub(crate) fn check_exit(cx: &mut Cx<'_>, mask: u32) {
    if mask != 0 && !cx.warp.wgmma.pending.is_empty() {
        let detail = "the warp ends with products that it has not waited for".to_owned();
        cx.fault(Kind::WgmmaOrder, mask.trailing_zeros() as usize, detail);
    }
}

fn end(cx: &mut Cx<'_>, products: Vec<Product>) -> Result<(), Trouble> {
    for mut product in products {
        let extent = match product.is_transposed {
            true => [K, product.columns],
            false => [product.columns, K],
        };
        product.b.check(cx, extent, &product.known)?;
        match &product.a {
            Left::Shared(rows) => rows.check(cx, [M, K], &product.known)?,
            Left::Registers(slots, held) => {
                if **held != slots.map(|slot| narrow(cx, slot)) {
                    let detail = "a register of the first operand changed before the wait";
                    return Err((Kind::WgmmaOrder, detail.to_owned()));
                }
            }
        }
        if !product.is_done {
            run(cx, &mut product)?;
        }
    }
    Ok(())
}

/// Accumulators without a pending product are back in their registers.
fn give_sums(cx: &mut Cx<'_>) {
    let Products { pending, sums, .. } = &mut cx.warp.wgmma;
    for (at, place) in sums.iter_mut().enumerate() {
        if pending.iter().any(|product| product.sums == at) {
            continue;
        }
        let Some(Sums { slots, is_half, values }) = place.take() else { continue };
        let columns = values.len() / M;
        for (at, slot) in slots.iter().enumerate() {
            let register = &mut cx.warp.registers.narrow[slot.index()];
            for (lane, word) in register.iter_mut().enumerate() {
                *word = if is_half {
                    let first = self::place(2 * at, lane, columns);
                    pack_half(values[first], values[first + 1])
                } else {
                    values[self::place(at, lane, columns)].to_bits()
                };
            }
        }
    }
}
