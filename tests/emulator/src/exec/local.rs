//! A thread's local memory: the stack of what a compiler could not keep in registers.

use crate::memory::Written;
use crate::report::Kind;

/// Local memory of one warp, thread after thread.
pub(crate) struct Local {
    bytes: Vec<u8>,
    written: Written,
    bytes_per_thread: u64,
}

impl Local {
    pub(crate) fn new() -> Local {
        Local { bytes: Vec::new(), written: Written::none(0), bytes_per_thread: 0 }
    }

    pub(crate) fn reset(&mut self, bytes_per_thread: u64) {
        self.bytes_per_thread = bytes_per_thread;
        if bytes_per_thread > 0 {
            self.bytes.clear();
            self.bytes.resize(bytes_per_thread as usize * super::lanes::LANES, 0xDB);
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
        if address >= self.bytes_per_thread || self.bytes_per_thread - address < bytes {
            return Err((
                Kind::OutOfBounds,
                format!(
                    "{bytes} bytes at local address {address:#x}; the thread has {}",
                    self.bytes_per_thread
                ),
            ));
        }
        let start = lane as u64 * self.bytes_per_thread + address;
        if write {
            self.written.set(start, bytes);
        } else if !self.written.is(start, bytes) {
            return Err((Kind::Unwritten, format!("{bytes} bytes at local address {address:#x}")));
        }
        Ok(&mut self.bytes[start as usize..(start + bytes) as usize])
    }
}
