//! Page-aligned f32 buffers, on huge pages where the system has them.
//!
//! With this alignment no vector load straddles two cache lines, and access to scattered KV blocks
//! needs few page-table walks.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A page-aligned buffer of a fixed number of f32.
pub struct Aligned {
    map: MmapMut,
    len: usize,
}

impl Aligned {
    /// Allocates `len` zeros and touches every page, so that later accesses cause no page fault.
    pub fn zeroed(len: usize) -> Result<Self, String> {
        let mut buffer = Aligned::reserved(len)?;
        buffer.fill(0.0);
        Ok(buffer)
    }

    /// Allocates `len` zeros, whose pages take memory when they are first accessed.
    pub fn reserved(len: usize) -> Result<Self, String> {
        let bytes = len.saturating_mul(size_of::<f32>()).max(1);
        let map = MmapMut::map_anon(bytes)
            .map_err(|error| format!("cannot allocate {bytes} bytes: {error}"))?;
        // `madvise` is a hint: without huge pages the buffer is slower, and as correct.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Aligned { map, len })
    }
}

impl Deref for Aligned {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map[..self.len * size_of::<f32>()])
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl DerefMut for Aligned {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map[..self.len * size_of::<f32>()])
    }
}
