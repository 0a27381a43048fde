//! `cp.async.bulk`: copies of the copy engine from global to shared memory that count towards an
//! mbarrier, in this block, in another of the cluster or in several (multicast). The bytes arrive
//! at once or after the barrier's next test, by seed.

use super::Cx;
use super::global::Intent;
use super::lanes::lanes;
use super::mbarrier::{BulkCopy, Chunk};
use super::memory::{addresses, classify};
use super::shared::{Trouble, inside};
use crate::memory::{TensorMap, WORDS};
use crate::ptx::program::{Inst, Space};
use crate::report::Kind;

/// Bytes that every address and size is a multiple of.
const CHUNK: u64 = 16;

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], bytes,
/// [barrier]`, with a mask of blocks behind it if `imm` is 1 (`.multicast::cluster`)
pub(crate) fn copy(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let [to, from, barrier] = [i.s[0], i.s[1], i.s[3]].map(|slot| addresses(cx, slot, 0));
    let bytes = cx.warp.registers.narrow[i.s[2].index()];
    for lane in lanes(mask) {
        let length = u64::from(bytes[lane]);
        if let Err((kind, detail)) = contiguous(cx, i.line, from[lane], length, inside(to[lane]))
            .and_then(|chunks| issue(cx, i, lane, [to[lane], barrier[lane]], &chunks))
        {
            return cx.fault(kind, lane, detail);
        }
    }
}

/// `length` bytes at `from` for shared address `to`.
fn contiguous(
    cx: &mut Cx<'_>,
    line: u32,
    from: u64,
    length: u64,
    to: u64,
) -> Result<Vec<Chunk>, Trouble> {
    if !length.is_multiple_of(CHUNK) || length == 0 || !to.is_multiple_of(CHUNK) {
        let detail =
            format!("a bulk copy of {length} bytes to shared address {to:#x}: not in units of 16");
        return Err((Kind::Misaligned, detail));
    }
    let bytes = read(cx, line, from, length)?;
    let chunks = bytes.as_chunks().0.iter().zip((to..).step_by(CHUNK as usize));
    Ok(chunks.map(|(&bytes, to)| Chunk { to, bytes }).collect())
}

/// `length` bytes of global memory at `from`.
fn read(cx: &mut Cx<'_>, line: u32, from: u64, length: u64) -> Result<Vec<u8>, Trouble> {
    let at = cx.global(line, from, length, CHUNK, Intent::Read)?;
    let mut bytes = vec![0; length as usize];
    // SAFETY: `global` found `length` bytes there, and the buffer has as many.
    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
    Ok(bytes)
}

/// `cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [to], [map,
/// {x, y}], [barrier]`, with a mask of blocks as for [`copy`]
pub(crate) fn copy_box(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let [to, map, barrier] = [i.s[0], i.s[1], i.s[4]].map(|slot| addresses(cx, slot, 0));
    let [x, y] = [i.s[2], i.s[3]].map(|slot| cx.warp.registers.narrow[slot.index()]);
    for lane in lanes(mask) {
        let corner = [x[lane] as i32, y[lane] as i32].map(i64::from);
        if let Err((kind, detail)) = tensor_map(cx, i.line, map[lane])
            .and_then(|map| boxed(cx, i.line, &map, corner, inside(to[lane])))
            .and_then(|chunks| issue(cx, i, lane, [to[lane], barrier[lane]], &chunks))
        {
            return cx.fault(kind, lane, detail);
        }
    }
}

/// The tensor map at generic address `address`.
fn tensor_map(cx: &mut Cx<'_>, line: u32, address: u64) -> Result<TensorMap, Trouble> {
    let bytes = 8 * WORDS as u64;
    let found = match classify(address) {
        (Space::Param, at) => {
            let at = at as usize;
            cx.grid.params.get(at..at + bytes as usize).and_then(TensorMap::decode)
        }
        (Space::Global, at) => TensorMap::decode(&read(cx, line, at, bytes)?),
        _ => None,
    };
    found.filter(|_| address.is_multiple_of(64)).ok_or_else(|| {
        (Kind::OutOfBounds, format!("generic address {address:#x} has no tensor map"))
    })
}

/// The box of `map` whose first element is at `corner`, for shared address `to`. What lies outside
/// of the matrix is zero.
fn boxed(
    cx: &mut Cx<'_>,
    line: u32,
    map: &TensorMap,
    corner: [i64; 2],
    to: u64,
) -> Result<Vec<Chunk>, Trouble> {
    if !to.is_multiple_of(128) {
        let detail = format!("a box at shared address {to:#x}, which is not a multiple of 128");
        return Err((Kind::Misaligned, detail));
    }
    let row_bytes = map.boxed[0] * map.element;
    let mut chunks = Vec::new();
    for row in 0..map.boxed[1] {
        let mut bytes = vec![0; row_bytes as usize];
        let y = corner[1] + row as i64;
        // Elements of the row that are inside.
        let first = corner[0].max(0);
        let last = (corner[0] + map.boxed[0] as i64).min(map.extents[0] as i64);
        if (0..map.extents[1] as i64).contains(&y) && first < last {
            let from = map.base + y as u64 * map.row_bytes + first as u64 * map.element;
            let length = (last - first) as u64 * map.element;
            // Only the map's base and strides are aligned.
            let at = cx.global(line, from, length, map.element, Intent::Read)?;
            let into = ((first - corner[0]) as u64 * map.element) as usize;
            let target = &mut bytes[into..into + length as usize];
            // SAFETY: `global` found `length` bytes there, as many as the target has.
            unsafe { std::ptr::copy_nonoverlapping(at, target.as_mut_ptr(), target.len()) };
        }
        let place = (to + row * row_bytes..).step_by(CHUNK as usize);
        for (&bytes, at) in bytes.as_chunks().0.iter().zip(place) {
            chunks.push(Chunk { to: map.swizzle.apply(at), bytes });
        }
    }
    Ok(chunks)
}

/// Sends `chunks` on their way, to the block that the address `to` is of, or to several.
fn issue(
    cx: &mut Cx<'_>,
    i: &Inst,
    lane: usize,
    [to, barrier]: [u64; 2],
    chunks: &[Chunk],
) -> Result<(), Trouble> {
    let (target, barrier) = (cx.shared.resolve(to)?, cx.shared.resolve(barrier)?);
    if target.0 != barrier.0 {
        let detail =
            format!("a copy to block {} with an mbarrier of block {}", target.0, barrier.0);
        return Err((Kind::MbarrierMisuse, detail));
    }
    let ranks = match i.sources().last() {
        Some(slot) if i.imm == 1 => cx.warp.registers.narrow[slot.index()][lane] & 0xFFFF,
        _ => 1 << target.0,
    };
    let warp = cx.warp.number;
    // The copy is neither the warp's earlier nor its later accesses: it has its own clock.
    cx.shared.tick(warp);
    for rank in lanes(ranks) {
        cx.shared.check_rank(rank)?;
        cx.shared.check_barrier((rank, barrier.1), warp, lane)?;
        for chunk in chunks {
            cx.shared.launch_copy((rank, chunk.to), warp, lane, CHUNK)?;
        }
    }
    let agent = cx.shared.agent(warp);
    let clock = cx.shared.clocks(warp)[agent];
    cx.shared.tick(warp);
    for rank in lanes(ranks) {
        let copy = BulkCopy { warp: agent, clock, chunks: chunks.to_vec() };
        cx.shared.add_copy((rank, barrier.1), copy, cx.grid.late_copies)?;
    }
    Ok(())
}
