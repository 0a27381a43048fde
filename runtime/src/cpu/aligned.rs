//! Float buffers on whole pages, huge ones where the system has them.
//!
//! No register of a kernel straddles two cache lines, and the scattered blocks of the KV pool do not
//! each cost a page-table walk.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A fixed number of f32.
pub(crate) struct Aligned {
    map: MmapMut,
    len: usize,
}

impl Aligned {
    /// `len` zeros, resident: using them causes no page fault.
    pub(crate) fn zeroed(len: usize) -> Result<Self, String> {
        let bytes = (len * size_of::<f32>()).max(1);
        let map = MmapMut::map_anon(bytes)
            .map_err(|error| format!("cannot allocate {bytes} bytes: {error}"))?;
        // Huge pages are a wish: without them all is as correct.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let mut buffer = Aligned { map, len };
        buffer.fill(0.0);
        Ok(buffer)
    }
}

impl Deref for Aligned {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map[..self.len * size_of::<f32>()])
    }
}

impl DerefMut for Aligned {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map[..self.len * size_of::<f32>()])
    }
}
