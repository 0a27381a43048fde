//! Float buffers that begin at a cache line, so that no register of a kernel straddles two.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line, and the widest register.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: an array of f32, without padding; all bits zero is a value.
unsafe impl Zeroable for Line {}
// SAFETY: as above; every bit pattern is a value.
unsafe impl Pod for Line {}

/// A fixed number of f32 on 64-byte alignment.
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        Aligned { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
