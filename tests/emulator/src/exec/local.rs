//! A thread's local memory: the stack of what a compiler could not keep in registers.

use crate::memory::Written;
use crate::report::Kind;

/// Local memory of one warp, thread after thread.
pub(crate) struct Local {
    bytes: Vec<u8>,
    written: Written,
    each: u64,
}

impl Local {
    pub(crate) fn new() -> Local {
        Local { bytes: Vec::new(), written: Written::none(0), each: 0 }
    }

    pub(crate) fn reset(&mut self, each: u64) {
        self.each = each;
        if each > 0 {
            self.bytes.clear();
            self.bytes.resize(each as usize * super::lanes::LANES, 0xDB);
            self.written = Written::none(self.bytes.len() as u64);
        }
    }

    /// The bytes of a lane's access, after the checks.
    pub(crate) fn access(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u64,
        write: bool,
    ) -> Result<&mut [u8], (Kind, String)> {
        if !address.is_multiple_of(bytes) {
            return Err((
                Kind::Misaligned,
                format!("local address {address:#x} is not a multiple of {bytes}"),
            ));
        }
        if address >= self.each || self.each - address < bytes {
            return Err((
                Kind::OutOfBounds,
                format!(
                    "{bytes} bytes at local address {address:#x}; the thread has {}",
                    self.each
                ),
            ));
        }
        let start = lane as u64 * self.each + address;
        if write {
            self.written.set(start, bytes);
        } else if !self.written.is(start, bytes) {
            return Err((Kind::Unwritten, format!("{bytes} bytes at local address {address:#x}")));
        }
        Ok(&mut self.bytes[start as usize..(start + bytes) as usize])
    }
}
