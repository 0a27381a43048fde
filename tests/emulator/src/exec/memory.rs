//! Loads and stores of every state space. Data passes through a buffer, lane after lane, so that a
//! warp that touches one contiguous range moves it with one copy and one check.

use super::Cx;
use super::lanes::{FULL, LANES, lanes};
use super::shared::Manner;
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::ptx::program::{Inst, Slot, Space};
use crate::ptx::types::Class;
use crate::report::Kind;

/// Most bytes a lane moves.
pub(crate) const WIDEST: usize = 32;

/// Data of a warp's access: lane l's bytes start at `l * size`.
#[repr(align(64))]
pub(crate) struct Buffer(pub(crate) [u8; WIDEST * LANES]);

impl Buffer {
    #[inline(always)]
    pub(crate) fn new() -> Buffer {
        Buffer([0; WIDEST * LANES])
    }

    #[inline(always)]
    pub(crate) fn lane(&mut self, lane: usize, size: usize) -> &mut [u8] {
        &mut self.0[lane * size..(lane + 1) * size]
    }
}

/// Addresses of an access: base register plus offset.
#[inline(always)]
pub(crate) fn addresses(cx: &Cx<'_>, base: Slot, offset: i64) -> [u64; LANES] {
    match base.class() {
        Class::Wide => {
            let mut addresses = cx.warp.registers.wide[base.index()];
            addresses.iter_mut().for_each(|address| *address = address.wrapping_add(offset as u64));
            addresses
        }
        _ => cx.warp.registers.narrow[base.index()]
            .map(|base| u64::from(base.wrapping_add(offset as u32))),
    }
}

/// A generic address's window, and the address inside it.
#[inline(always)]
pub(crate) fn classify(address: u64) -> (Space, u64) {
    match address {
        SHARED_WINDOW..LOCAL_WINDOW if address - SHARED_WINDOW < WINDOW_BYTES => {
            (Space::Shared, address - SHARED_WINDOW)
        }
        LOCAL_WINDOW..PARAM_WINDOW if address - LOCAL_WINDOW < WINDOW_BYTES => {
            (Space::Local, address - LOCAL_WINDOW)
        }
        _ if address >= PARAM_WINDOW && address - PARAM_WINDOW < WINDOW_BYTES => {
            (Space::Param, address - PARAM_WINDOW)
        }
        _ => (Space::Global, address),
    }
}

/// `ld`
pub(crate) fn load(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let size = usize::from(i.access.bytes) * usize::from(i.access.count);
    let addresses = addresses(cx, i.s[0], i.imm);
    let mut data = Buffer::new();
    in_space(cx, i.access.space, mask, &addresses, |cx, space, mask, addresses| {
        gather(cx, i, space, mask, addresses, size, &mut data);
    });
    if cx.warp.fault.is_none() {
        deal(cx, i, mask, &data);
    }
}

/// `st`
pub(crate) fn store(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let size = usize::from(i.access.bytes) * usize::from(i.access.count);
    let addresses = addresses(cx, i.s[0], i.imm);
    let mut data = Buffer::new();
    collect(cx, i, &mut data);
    in_space(cx, i.access.space, mask, &addresses, |cx, space, mask, addresses| {
        scatter(cx, i, space, mask, addresses, size, &mut data);
    });
}

/// Calls `access` once for each state space among the lanes' addresses.
#[inline(always)]
pub(crate) fn in_space(
    cx: &mut Cx<'_>,
    space: Space,
    mask: u32,
    addresses: &[u64; LANES],
    mut access: impl FnMut(&mut Cx<'_>, Space, u32, &[u64; LANES]),
) {
    if space != Space::Generic {
        return access(cx, space, mask, addresses);
    }
    let mut left = mask;
    while left != 0 {
        let (space, _) = classify(addresses[left.trailing_zeros() as usize]);
        let mut inside = *addresses;
        let mut same = 0;
        for lane in lanes(left) {
            let (lane_space, address) = classify(addresses[lane]);
            if lane_space == space {
                same |= 1 << lane;
                inside[lane] = address;
            }
        }
        access(cx, space, same, &inside);
        left &= !same;
    }
}

fn gather(
    cx: &mut Cx<'_>,
    i: &Inst,
    space: Space,
    mask: u32,
    addresses: &[u64; LANES],
    size: usize,
    data: &mut Buffer,
) {
    match space {
        Space::Shared => shared_lanes(cx, mask, addresses, size, Manner::Read, data),
        Space::Local => local_lanes(cx, mask, addresses, size, false, data),
        Space::Param => params(cx, mask, addresses, size, data),
        _ => cx.global_gather(i, mask, addresses, size, data),
    }
}

fn scatter(
    cx: &mut Cx<'_>,
    i: &Inst,
    space: Space,
    mask: u32,
    addresses: &[u64; LANES],
    size: usize,
    data: &mut Buffer,
) {
    match space {
        Space::Shared => shared_lanes(cx, mask, addresses, size, Manner::Write, data),
        Space::Local => local_lanes(cx, mask, addresses, size, true, data),
        Space::Param | Space::Const => {
            cx.fault(
                Kind::OutOfBounds,
                mask.trailing_zeros() as usize,
                format!("a store to {space} memory"),
            );
        }
        _ => cx.global_scatter(i, mask, addresses, size, data),
    }
}

fn shared_lanes(
    cx: &mut Cx<'_>,
    mask: u32,
    addresses: &[u64; LANES],
    size: usize,
    manner: Manner,
    data: &mut Buffer,
) {
    let warp = cx.warp.number;
    for lane in lanes(mask) {
        let address = addresses[lane];
        if let Err((kind, detail)) = cx.shared.check(warp, lane, address, size as u64, manner) {
            return cx.fault(kind, lane, detail);
        }
        let bytes = &mut cx.shared.bytes()[address as usize..address as usize + size];
        if manner == Manner::Write {
            copy_small(bytes, data.lane(lane, size));
        } else {
            copy_small(data.lane(lane, size), bytes);
        }
    }
}

/// Copies 1 to 32 bytes; the usual lengths without a call.
#[inline(always)]
fn copy_small(to: &mut [u8], from: &[u8]) {
    match to.len() {
        4 => to.copy_from_slice(&from[..4]),
        16 => to.copy_from_slice(&from[..16]),
        8 => to.copy_from_slice(&from[..8]),
        2 => to.copy_from_slice(&from[..2]),
        _ => to.copy_from_slice(from),
    }
}

fn local_lanes(
    cx: &mut Cx<'_>,
    mask: u32,
    addresses: &[u64; LANES],
    size: usize,
    write: bool,
    data: &mut Buffer,
) {
    for lane in lanes(mask) {
        match cx.warp.local.access(lane, addresses[lane], size as u64, write) {
            Ok(bytes) if write => bytes.copy_from_slice(data.lane(lane, size)),
            Ok(bytes) => data.lane(lane, size).copy_from_slice(bytes),
            Err((kind, detail)) => return cx.fault(kind, lane, detail),
        }
    }
}

fn params(cx: &mut Cx<'_>, mask: u32, addresses: &[u64; LANES], size: usize, data: &mut Buffer) {
    for lane in lanes(mask) {
        let start = addresses[lane] as usize;
        let grid = cx.grid;
        match grid.params.get(start..start.wrapping_add(size)) {
            Some(bytes) => data.lane(lane, size).copy_from_slice(bytes),
            None => {
                let detail = format!(
                    "{size} bytes at parameter address {start:#x}; there are {}",
                    grid.params.len()
                );
                return cx.fault(Kind::OutOfBounds, lane, detail);
            }
        }
    }
}

/// Buffer to destination registers.
#[inline(always)]
fn deal(cx: &mut Cx<'_>, i: &Inst, mask: u32, data: &Buffer) {
    let (bytes, count) = (usize::from(i.access.bytes), usize::from(i.access.count));
    for (k, &slot) in i.targets().iter().enumerate() {
        match slot.class() {
            Class::Wide => {
                let mut values = [0u64; LANES];
                for (lane, value) in values.iter_mut().enumerate() {
                    *value = word(&data.0, (lane * count + k) * bytes, bytes, i.access.signed);
                }
                blend(&mut cx.warp.registers.wide[slot.index()], &values, mask);
            }
            _ => {
                let mut values = [0u32; LANES];
                for (lane, value) in values.iter_mut().enumerate() {
                    *value = match bytes {
                        4 => word4(&data.0, (lane * count + k) * 4),
                        _ => {
                            word(&data.0, (lane * count + k) * bytes, bytes, i.access.signed) as u32
                        }
                    };
                }
                blend(&mut cx.warp.registers.narrow[slot.index()], &values, mask);
            }
        }
    }
}

#[inline(always)]
fn word4(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap_or_default())
}

#[inline(always)]
fn word(data: &[u8], at: usize, bytes: usize, signed: bool) -> u64 {
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(&data[at..at + bytes]);
    let value = u64::from_le_bytes(word);
    let shift = 64 - 8 * bytes as u32;
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value }
}

#[inline(always)]
pub(crate) fn blend<T: Copy>(to: &mut [T; LANES], values: &[T; LANES], mask: u32) {
    if mask == FULL {
        *to = *values;
    } else {
        for lane in 0..LANES {
            to[lane] = if mask >> lane & 1 == 1 { values[lane] } else { to[lane] };
        }
    }
}

/// Source registers to buffer.
#[inline(always)]
fn collect(cx: &Cx<'_>, i: &Inst, data: &mut Buffer) {
    let (bytes, count) = (usize::from(i.access.bytes), usize::from(i.access.count));
    for (k, &slot) in i.sources()[1..].iter().enumerate() {
        for lane in 0..LANES {
            let value = match slot.class() {
                Class::Wide => cx.warp.registers.wide[slot.index()][lane],
                _ => u64::from(cx.warp.registers.narrow[slot.index()][lane]),
            };
            let at = (lane * count + k) * bytes;
            match bytes {
                4 => data.0[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes()),
                8 => data.0[at..at + 8].copy_from_slice(&value.to_le_bytes()),
                2 => data.0[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes()),
                _ => data.0[at] = value as u8,
            }
        }
    }
}
